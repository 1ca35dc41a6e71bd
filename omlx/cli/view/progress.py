"""What progress bars have in common: they are there while they are entered.

Knows nothing about what makes progress.
"""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class EnteredProgress:
    """A rich progress display on stderr, or on `console`."""

    def __init__(self, *columns: ProgressColumn, console: Console | None) -> None:
        self._progress = Progress(*columns, console=console or Console(stderr=True))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
