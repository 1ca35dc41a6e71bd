"""The thread behind the dashboard, and where stderr goes meanwhile."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from omlx.cli.live import Dashboard, LineView, open_dashboard
from omlx.cli.view.status import Status
from omlx.errors import OmlxError


class QueueView:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: queue.SimpleQueue[Status] = queue.SimpleQueue()
        self.is_closed = False

    def show(self, status: Status) -> None:
        self.shown.put(status)

    def close(self) -> None:
        self.is_closed = True


def test_it_shows_until_it_is_closed() -> None:
    view = QueueView()
    dashboard = Dashboard(view, interval_s=0.001)
    dashboard.feed(lambda: {"version": "1"})
    assert [view.shown.get(timeout=10).version for _ in range(3)] == ["1", "1", "1"]
    dashboard.close()
    assert view.is_closed
    assert "dashboard" not in {thread.name for thread in threading.enumerate()}


def test_closing_does_not_wait_for_the_interval() -> None:
    view = QueueView()
    dashboard = Dashboard(view, interval_s=3600)
    dashboard.feed(lambda: {})
    view.shown.get(timeout=10)
    dashboard.close()
    assert view.is_closed


def test_one_that_was_never_fed_can_be_closed() -> None:
    view = QueueView()
    Dashboard(view, interval_s=1).close()
    assert view.is_closed


def test_a_reader_of_stdout_that_is_gone_ends_it_quietly() -> None:
    class Gone(QueueView):
        def show(self, status: Status) -> None:
            super().show(status)
            raise BrokenPipeError

    view = Gone()
    dashboard = Dashboard(view, interval_s=0.001)
    dashboard.feed(lambda: {})
    view.shown.get(timeout=10)
    dashboard.close()
    assert view.shown.empty()


def test_plain_lines_where_stdout_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def snapshot() -> Mapping[str, object]:
        asked.put(None)
        return {"requests": {"finished": 7}}

    with open_dashboard(tmp_path / "log") as dashboard:
        dashboard.feed(snapshot)
        asked.get(timeout=10)
    out = capsys.readouterr().out
    assert out.startswith("waiting 0, prefilling 0, decoding 0, done 7,")
    assert out.count("\n") == 1
    assert not (tmp_path / "log").exists()


def test_a_line_view_needs_no_closing(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView()
    view.show(Status())
    view.close()
    assert capsys.readouterr().out.endswith("\n")


TERMINAL_SCRIPT = """
import os, sys, threading
from pathlib import Path
from omlx.cli.live import open_dashboard
shown = threading.Event()
def snapshot():
    shown.set()
    return {"version": "9.9"}
with open_dashboard(Path(sys.argv[1])) as dashboard:
    print("talk", file=sys.stderr, flush=True)
    os.system("echo child >&2")
    dashboard.feed(snapshot)
    shown.wait(10)
print("after", file=sys.stderr)
"""


def _read_all(fd: int) -> str:
    parts: list[bytes] = []
    try:
        while part := os.read(fd, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other end of a terminal is closed
        pass
    return b"".join(parts).decode()


def test_in_a_terminal_stderr_goes_to_the_log_and_comes_back(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    log = tmp_path / "logs" / "serve.log"
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL_SCRIPT, str(log)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(theirs)
    text = _read_all(ours)
    os.close(ours)
    assert process.wait() == 0
    assert log.read_text() == "talk\nchild\n"
    assert log.stat().st_mode & 0o777 == 0o600
    assert "omlx 9.9" in text
    assert text.rstrip().endswith("after")
    assert "talk" not in text
    assert "\x1b[?1049h" in text and "\x1b[?1049l" in text
    assert "\x1b[3" not in text  # no colour


def test_a_log_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").write_text("")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with (
        pytest.raises(OmlxError, match="serve.log cannot be written"),
        open_dashboard(tmp_path / "logs" / "serve.log"),
    ):
        pass
