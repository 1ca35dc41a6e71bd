"""The answer's text around its calls.

Knows nothing about what calls look like, apart from the marks that begin them.
"""

from omlx.server.parse.marks import Marks
from omlx.server.parse.said import Text
from omlx.server.parse.source import Source, Steps


class Prose:
    """Says text up to a mark; white space before, between and after calls is not said."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._space: list[str] = []
        self._space_at = 0
        self._is_quiet = True
        self.num_calls = 0

    def until(self, marks: Marks) -> Steps[str | None]:
        """Say text up to a mark and look past it; None if the text ends before."""
        source = self._source
        while True:
            at = source.at
            text, mark = source.step(marks, is_last=source.is_ended)
            yield from self.say(text, at)
            if mark:
                return mark
            if source.is_ended:
                break
            yield None
        yield from self.finish()
        return None

    def finish(self) -> Steps[None]:
        """The text has ended: say the space that was held, unless calls came before it."""
        if not self.num_calls:
            yield from self._release()

    def refuse(self, mark: str) -> Steps[None]:
        """Say a mark that began no call; what follows is looked at again."""
        source = self._source
        source.rewind()
        at = source.at
        source.skip(len(mark))
        yield from self.say(mark, at)

    def call(self) -> int:
        """A call begins here: return its number (mutates)."""
        self._space.clear()
        self._is_quiet = True
        self.num_calls += 1
        return self.num_calls - 1

    def drop(self) -> None:
        """Take a mark that was looked past, and forget the space before it (mutates)."""
        self._source.commit()
        self._space.clear()

    def say(self, text: str, at: int) -> Steps[None]:
        """Say text that stands at `at`, or hold it if it may be the space before a call."""
        if not text:
            return
        if self._is_quiet:
            blank = len(text) - len(text.lstrip())
            if blank:
                self._space_at = at if not self._space else self._space_at
                self._space.append(text[:blank])
            if blank == len(text):
                return
            yield from self._release()
            self._is_quiet = False
            text, at = text[blank:], at + blank
        yield Text(text, at)

    def _release(self) -> Steps[None]:
        if self._space:
            yield Text("".join(self._space), self._space_at)
            self._space.clear()
