"""Progress bars on stderr, one for each stage of a pull.

Knows nothing about what the stages do.
"""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress

from omlx.models.demo import Progress, Stage


class Bars:
    """Shows progress while it is entered; call it with each."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = RichProgress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
        )
        self._tasks: dict[Stage, TaskID] = {}

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

    def __call__(self, progress: Progress) -> None:
        """Move the bar of its stage (mutates)."""
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._progress.add_task(progress.stage.value)
        task = self._tasks[progress.stage]
        self._progress.update(task, completed=progress.done, total=progress.total)
