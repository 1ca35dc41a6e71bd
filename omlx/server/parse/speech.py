"""Splits all that a model says into reasoning, text and calls.

Knows nothing about how the form was chosen, or what the parts become in a dialect.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from omlx.server.parse.join import joined
from omlx.server.parse.reasoning import ReasoningMarks, ReasoningSplitter
from omlx.server.parse.said import CallFormat, Parser, Said, Text, Tools


@dataclass(frozen=True, slots=True)
class SpeechForm:
    """How a model writes: the marks of its reasoning and its calls, None where it has none.

    A format whose parser tells reasoning itself comes without marks.
    """

    reasoning: ReasoningMarks | None = None
    calls: CallFormat | None = None

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that the detokenizer must deliver as text."""
        marks = self.reasoning
        own = frozenset((*marks.opens, *marks.closes, *marks.parts)) if marks else _NONE
        return own | (self.calls.kept if self.calls else _NONE)

    def opens_thinking(self, prompt: str) -> bool:
        """Whether a rendered prompt has opened a block of thinking that the answer goes on with."""
        return self.reasoning is not None and self.reasoning.opens_in(prompt)

    def without_calls(self) -> "SpeechForm":
        """The form for an answer to a request without tools: the markup of calls is content."""
        return replace(self, calls=None)


_NONE: frozenset[str] = frozenset()


class Speech:
    """Splits one answer; without tools, calls are not looked for."""

    def __init__(self, form: SpeechForm, tools: Tools = (), *, is_open: bool = False) -> None:
        marks = form.reasoning
        self._splitter = ReasoningSplitter(marks, is_open=is_open) if marks else None
        self._parser: Parser | None = form.calls.parser(tools) if form.calls and tools else None
        self._length = 0
        # Where the text that the parser of calls gets begins in all text: it is one stretch.
        self._shift = -1

    def add(self, text: str) -> list[Said]:
        """Take more text, return what is certain (mutates)."""
        if not text:
            return []
        parts: list[Said] = (
            [Text(text, self._length)] if self._splitter is None else self._splitter.add(text)
        )
        self._length += len(text)
        return self._parsed(parts)

    def finish(self, *, is_cut: bool) -> list[Said]:
        """Return what was held back, once the text has ended, by a limit or not (mutates)."""
        said = self._parsed(self._splitter.finish()) if self._splitter else []
        if self._parser is not None:
            said += self._shifted(self._parser.finish(is_cut=is_cut))
        return joined(said)

    def _parsed(self, parts: Iterable[Said]) -> list[Said]:
        said: list[Said] = []
        for part in joined(parts):
            if self._parser is None or not isinstance(part, Text):
                said.append(part)
                continue
            if self._shift < 0:
                self._shift = part.at
            said += self._shifted(self._parser.add(part.text))
        return joined(said)

    def _shifted(self, parts: Iterable[Said]) -> Iterable[Said]:
        for part in parts:
            if isinstance(part, Text) and part.at >= 0:
                yield Text(part.text, part.at + max(self._shift, 0))
            else:
                yield part
