"""One answer's tokens become what the model said: text, stop strings, reasoning, calls, scores.

Knows nothing about engines, times or dialects.
"""

from collections import deque
from collections.abc import Sequence

from omlx.engine.request import Token
from omlx.server.context import ModelText
from omlx.server.parse.said import CallBegan, Parser, Reasoning, Said, Score, Text
from omlx.server.parse.stop import StopStrings


class Transcript:
    """What was said so far in one answer; for one thread at a time.

    Stop strings are looked for in all that the model says, reasoning and calls included.
    """

    def __init__(
        self,
        text: ModelText,
        parser: Parser,
        stops: Sequence[str],
        *,
        kept: frozenset[str] = frozenset(),
        is_thinking: bool = False,
    ) -> None:
        self._text = text
        self._stream = text.stream(kept)
        self._stops = StopStrings(stops)
        self._parser = parser
        # Tokens whose text has not been said yet, with where it begins.
        self._scores: deque[tuple[int, Score]] = deque()
        self._num_chars = 0
        self.is_thinking = is_thinking
        self.num_reasoning = 0
        self.has_calls = False

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.matched

    def add(self, token: Token) -> list[Said]:
        """Take the next token, return what is certain; nothing comes after a stop (mutates)."""
        if token.logprob is not None:
            self._scores.append((self._num_chars, self._score(token)))
        said = self._heard(self._stream.add(token.token))
        self.num_reasoning += self.is_thinking
        return said

    def insert(self, text: str, num_tokens: int) -> list[Said]:
        """Take text that the model was made to say (mutates)."""
        said = self._heard(self._stream.finish() + text)
        self.num_reasoning += num_tokens
        return said

    def finish(self, *, is_cut: bool) -> list[Said]:
        """Return what was held back; `is_cut` says that a limit ended the answer (mutates)."""
        said = self._heard(self._stream.finish())
        if self.stop is None:
            said += self._parsed(self._stops.finish())
        return said + self._noted(self._parser.finish(is_cut=is_cut))

    def _heard(self, text: str) -> list[Said]:
        self._num_chars += len(text)
        return self._parsed(self._stops.add(text))

    def _parsed(self, text: str) -> list[Said]:
        return self._noted(self._parser.add(text)) if text else []

    def _noted(self, said: list[Said]) -> list[Said]:
        for part in said:
            self.is_thinking = isinstance(part, Reasoning)
            if isinstance(part, CallBegan):
                self.has_calls = True
        if not self._scores:
            return said
        return [self._scored(part) if isinstance(part, Text) else part for part in said]

    def _scored(self, part: Text) -> Text:
        """The text with the scores of the tokens that begin in it; earlier ones are dropped."""
        if part.at < 0:
            return part
        found: list[Score] = []
        while self._scores and self._scores[0][0] < part.at + len(part.text):
            at, score = self._scores.popleft()
            if at >= part.at:
                found.append(score)
        return Text(part.text, part.at, tuple(found))

    def _score(self, token: Token) -> Score:
        assert token.logprob is not None
        top = tuple(self._one(other, logprob) for other, logprob in token.top)
        return self._one(token.token, token.logprob, top)

    def _one(self, token_id: int, logprob: float, top: tuple[Score, ...] = ()) -> Score:
        raw = self._text.token_bytes(token_id)
        return Score(raw.decode("utf-8", "replace"), raw, logprob, top)
