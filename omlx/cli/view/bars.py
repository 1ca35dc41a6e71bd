"""Progress bars on stderr, one for each stage of a pull.

Knows nothing about what the stages do.
"""

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from omlx.cli.view.progress import EnteredProgress
from omlx.models.demo import Progress, Stage


class Bars(EnteredProgress):
    """Shows progress while it is entered; call it with each."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[Stage, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        """Move the bar of its stage (mutates)."""
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._progress.add_task(progress.stage.value)
        task = self._tasks[progress.stage]
        self._progress.update(task, completed=progress.done, total=progress.total)
