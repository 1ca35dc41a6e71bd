"""Puts the answers of a request together from the pieces in which they come.

Knows nothing about dialects or where the pieces come from.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from omlx.server.generation import Answer, Ended, Piece, ToolCall
from omlx.server.parse.said import CallArguments, CallBegan, Reasoning, Text


@dataclass(slots=True)
class _One:
    parts: list[Text | Reasoning | ToolCall] = field(
        default_factory=list[Text | Reasoning | ToolCall]
    )
    # Texts of the last part: joined when it is over, since there may be very many.
    texts: list[str] = field(default_factory=list[str])
    ended: Ended | None = None

    def close(self) -> None:
        """Give the last part its whole text (mutates)."""
        if not self.texts:
            return
        text, self.texts = "".join(self.texts), []
        last = self.parts[-1]
        if isinstance(last, ToolCall):
            self.parts[-1] = replace(last, arguments=text)
        else:
            self.parts[-1] = replace(last, text=text)


class Spoken:
    """The answers so far; for one thread at a time."""

    def __init__(self) -> None:
        self._ones: defaultdict[int, _One] = defaultdict(_One)

    def take(self, choice: int, piece: Piece) -> None:
        """Add a piece of an answer (mutates)."""
        one = self._ones[choice]
        last = one.parts[-1] if one.parts else None
        match piece:
            case Text():
                if isinstance(last, Text):
                    scores = (*last.scores, *piece.scores) if piece.scores else last.scores
                    one.parts[-1] = replace(last, scores=scores)
                else:
                    one.close()
                    one.parts.append(piece)
                one.texts.append(piece.text)
            case Reasoning():
                if not isinstance(last, Reasoning):
                    one.close()
                    one.parts.append(piece)
                one.texts.append(piece.text)
            case CallBegan():
                one.close()
                one.parts.append(ToolCall(piece.index, piece.name, ""))
            case CallArguments():
                one.texts.append(piece.text)
            case Ended():
                one.close()
                one.ended = piece
            case _:
                pass

    def parts(self, choice: int) -> list[Text | Reasoning | ToolCall]:
        """What was said in one answer, of which no more comes (mutates)."""
        self._ones[choice].close()
        return list(self._ones[choice].parts)

    def answers(self) -> list[Answer]:
        """All of them, in order; each has ended."""
        found: list[Answer] = []
        for _, one in sorted(self._ones.items()):
            assert one.ended is not None, "an answer has not ended"
            found.append(Answer(tuple(one.parts), one.ended))
        return found
