"""Shows a running server's status again and again: a picture in a terminal, else plain lines.

Knows nothing about what a status looks like or where it comes from.
"""

import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from omlx.cli.view.status import Status, read_status
from omlx.errors import OmlxError

LIVE_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0

Snapshot = Callable[[], Mapping[str, object]]


class View(Protocol):
    """Something that can show a status; used by one thread at a time."""

    def show(self, status: Status) -> None:
        """Show it, in place of what was shown before or after it."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class LineView:
    """One plain line for each status, on stdout."""

    def show(self, status: Status) -> None:
        """Print the line."""
        from omlx.cli.view.dashboard import plain_line

        print(plain_line(status), flush=True)

    def close(self) -> None:
        """Nothing to do."""


class LiveView:
    """A picture that fills the terminal; the first status opens it."""

    def __init__(self, notes: tuple[str, ...]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._notes = notes
        self._console = Console()
        self._live = Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, status: Status) -> None:
        """Draw it."""
        from omlx.cli.view.dashboard import render

        self._live.start()
        picture = render(status, width=self._console.width, notes=self._notes)
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


class Dashboard:
    """Asks for a status at an interval, on a thread of its own, and shows it."""

    def __init__(self, view: View, interval_s: float) -> None:
        self._view = view
        self._interval_s = interval_s
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def feed(self, snapshot: Snapshot) -> None:
        """Begin to show what `snapshot` returns (mutates); any thread may call it, once."""
        assert self._thread is None, "fed twice"
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name="dashboard", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Show nothing more and leave the terminal as it was."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join()
        self._view.close()

    def _run(self, snapshot: Snapshot) -> None:
        with suppress(OSError):  # nobody reads stdout any more
            while not self._is_closing.is_set():
                self._view.show(read_status(snapshot()))
                self._is_closing.wait(self._interval_s)


@contextmanager
def open_dashboard(log_path: Path) -> Generator[Dashboard]:
    """A dashboard for stdout as it is; while it has the terminal, stderr goes to `log_path`."""
    is_terminal = sys.stdout.isatty()
    with ExitStack() as stack:
        notes: tuple[str, ...] = ()
        if is_terminal and sys.stderr.isatty():
            stack.enter_context(_stderr_in(log_path))
            notes = (f"ctrl-c stops the server; log: {log_path}",)
        view = LiveView(notes) if is_terminal else LineView()
        dashboard = Dashboard(view, LIVE_INTERVAL_S if is_terminal else LINE_INTERVAL_S)
        stack.callback(dashboard.close)
        yield dashboard


@contextmanager
def _stderr_in(path: Path) -> Generator[None]:
    """Write what this process and its children send to stderr into a new file."""
    log = _open_log(path)
    sys.stderr.flush()
    fd = sys.stderr.fileno()
    terminal = os.dup(fd)
    os.dup2(log, fd)
    os.close(log)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, fd)
        os.close(terminal)


def _open_log(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OmlxError(f"the log {path} cannot be written: {reason}") from None
