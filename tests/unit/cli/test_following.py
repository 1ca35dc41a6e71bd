"""`omlx top`: how it finds a server, outlives it, and leaves the terminal as it was."""

import io
import json
import os
import pty
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from omlx.cli.following import Pages, Picture, Source, Told, View, show_all
from omlx.cli.keyboard import Keyboard
from omlx.client import RunningServer
from omlx.errors import ServerError, UsageError
from tests.fakes.http import JsonServer
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_top import REQUESTS, told

PATHS = {"/admin/api/status": told(), "/admin/api/requests": REQUESTS}


class KeepView:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, told: Told) -> None:
        self.shown.append("frame")

    def lost(self, reason: str) -> None:
        self.shown.append(reason)

    def close(self) -> None:
        self.shown.append("closed")


class Script:
    """Gives one thing after the other: answers, or errors that it raises."""

    def __init__(self, *items: object) -> None:
        self.items = list(items)

    def __call__(self, *_: object) -> Any:
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


def server(port: int = 1) -> RunningServer:
    return RunningServer(1, f"http://127.0.0.1:{port}", "0")


def play(view: View, *answers: object, keys: str = "") -> None:
    """One turn for each answer, and then the key that ends it."""
    source = Source(lambda before: server(), Script(*answers))
    turns = [*("" for _ in range(len(answers))), *keys, "q"]
    show_all(source, view, wait=lambda seconds: turns.pop(0), interval_s=1)


def test_a_source_asks_the_same_server_until_it_is_lost() -> None:
    seen: list[RunningServer | None] = []

    def find(before: RunningServer | None) -> RunningServer:
        seen.append(before)
        return server(len(seen))

    source = Source(find, Script({}, {}, {}, {}, {}, ServerError("gone"), {}, {}))
    source.latest()
    source.latest()
    assert seen == [None]
    with pytest.raises(ServerError, match="gone"):
        source.latest()
    source.latest()
    assert seen == [None, server(1)]


def test_a_server_that_goes_away_is_waited_for() -> None:
    view = KeepView()
    gone, none = ServerError("no answer"), ServerError("no server is running")
    many = UsageError("2 servers run")
    source = Source(
        Script(server(), server(), none, none, many, server()),
        Script({}, {}, gone, gone, {}, {}, {}, {}),
    )
    turns = [*["", "x"] * 4, "q"]
    show_all(source, view, wait=lambda seconds: turns.pop(0), interval_s=1)
    assert view.shown == [
        "frame",
        "no answer",  # and once more, which needs not be said again
        "no server is running",
        "2 servers run",
        "frame",
        "frame",
    ]


@pytest.mark.parametrize("key", ["q", "Q", "abcq", "\x04"])
def test_keys_that_end_it(key: str) -> None:
    view = KeepView()
    source = Source(lambda before: server(), Script())
    show_all(source, view, wait=lambda seconds: key, interval_s=1)
    assert view.shown == []


def test_a_picture_says_that_the_server_is_gone_and_keeps_the_figures() -> None:
    console = Console(file=io.StringIO(), width=100, height=40, force_terminal=True)
    view = Picture(console)
    view.show(Told(told(), REQUESTS))
    view.lost("it is \x1b[2Jgone")
    assert console.is_alt_screen
    view.close()
    assert not console.is_alt_screen
    assert isinstance(console.file, io.StringIO)
    last = console.file.getvalue().split("waiting for one")[-1]
    assert "it is \N{REPLACEMENT CHARACTER}[2Jgone; " in console.file.getvalue()
    assert "no requests" in last and "codex 12,000" in last


def test_a_picture_of_a_server_that_never_answered() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    view = Picture(console)
    view.lost("nobody")
    view.close()
    assert isinstance(console.file, io.StringIO)
    assert "nobody; waiting for one" in console.file.getvalue()


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    view = Picture(console)
    view.show(Told(told(), REQUESTS))
    view.close()
    assert isinstance(console.file, io.StringIO)
    assert "38;5;" not in console.file.getvalue()
    assert "bad" in console.file.getvalue()


def test_pages_are_plain(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    view = Pages()
    view.show(Told(told(), REQUESTS))
    view.show(Told(told(), REQUESTS))
    view.lost("gone")
    view.close()
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out
    first, second = captured.out.split("\n\nomlx 0.1.0")
    assert first.startswith("omlx 0.1.0") and "claude-cli  SmolLM2-135M" in second
    assert captured.err == "warning: gone\n"


# ---- the command


@pytest.fixture
def live(home: Path) -> Iterator[JsonServer]:
    with JsonServer(PATHS) as fake:
        folder = home / "state"
        folder.mkdir(parents=True)
        state = {"pid": os.getpid(), "address": fake.address, "version": "0.1.0"}
        (folder / f"server-{fake.port}.json").write_text(json.dumps(state))
        yield fake


def test_one_frame(cli: Cli, live: JsonServer) -> None:
    outcome = cli("top", "--once")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(
        "omlx 0.1.0  http://127.0.0.1:8000  up 12m 4s\nuncached/turn  codex"
    )
    assert "━━━━╌╌╌╌ 12.3k/25.3k  812 tok/s" in outcome.out
    assert "\x1b" not in outcome.out


def test_one_frame_as_json(cli: Cli, live: JsonServer) -> None:
    outcome = cli("top", "--once", "--json", "--port", str(live.port))
    said = json.loads(outcome.out)
    assert outcome.out.count("\n") == 1
    assert said["requests"] == REQUESTS["requests"]
    assert said["status"]["last_day"]["written_bytes"] == 2_100_000_000


class Killing(dict[str, object]):
    """Answers that end this process at the second frame: by then it is being followed."""

    def get(self, key: str, default: object = None) -> object:
        self["asked"] = [*self.setdefault("asked", []), key]  # type: ignore[misc]
        if self["asked"].count("/admin/api/status") == 2:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
        return super().get(key, default)


def test_sigterm_ends_it_like_ctrl_c(cli: Cli, live: JsonServer) -> None:
    """And the handlers are those of before."""
    before = signal.getsignal(signal.SIGTERM)
    live.answers = Killing(PATHS)
    outcome = cli("top", "--json", "--interval", "100ms")
    assert outcome.code == 130
    assert json.loads(outcome.out.splitlines()[0])["requests"] == REQUESTS["requests"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_cannot_be_watched(cli: Cli, home: Path, live: JsonServer) -> None:
    outcome = cli("top", "--once", "--port", "1")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no server is running on port 1" in outcome.err
    live.statuses = {"/admin/api/status": 403}
    outcome = cli("top", "--once")
    assert outcome.code == 1 and "OMLX_SERVER_API_KEY" in outcome.err
    for path in (home / "state").iterdir():
        path.unlink()
    outcome = cli("top")
    assert outcome.code == 1
    assert "no server is running" in outcome.err and "omlx serve starts one" in outcome.err


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ("soon", "--interval: 'soon' is not a number with a unit"),
        ("10ms", "--interval: '10ms' is too short"),
        ("0", "--interval: '0' is too short"),
    ],
)
def test_intervals_that_are_none(cli: Cli, interval: str, message: str) -> None:
    outcome = cli("top", "--interval", interval)
    assert outcome.code == 2 and message in outcome.err


def test_status_has_the_same_figures(cli: Cli, live: JsonServer) -> None:
    live.answers = {**PATHS, "/health": {"status": "ready", "models": []}}
    outcome = cli("status")
    assert "  uncached/turn  codex 12,000 bad, unknown 5,000 watch, claude-cli" in outcome.out
    assert "  disk/day       2.1 GB written good, 17.0 GB evicted watch" in outcome.out
    (said,) = json.loads(cli("status", "--json").out)["servers"]
    assert said["lead"]["uncached_per_turn"]["clients"][0]["client"] == "codex"


# ---- the keyboard


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Both ends of a terminal; stdin is the one."""
    ours, theirs = pty.openpty()
    with open(os.dup(theirs), encoding="utf-8") as stdin:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours, theirs
    os.close(ours)
    os.close(theirs)


def test_a_key_comes_at_once_and_the_terminal_is_as_before(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    with Keyboard() as keyboard:
        assert termios.tcgetattr(theirs) != before
        os.write(ours, b"q")
        assert keyboard.wait(60) == "q"
        assert keyboard.wait(0.01) == ""
    assert termios.tcgetattr(theirs) == before
    assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL


def test_another_size_ends_a_wait(terminal: tuple[int, int]) -> None:
    with Keyboard() as keyboard:
        os.kill(os.getpid(), signal.SIGWINCH)
        assert keyboard.wait(60) == ""


def test_the_terminal_is_as_before_after_a_signal(terminal: tuple[int, int]) -> None:
    _, theirs = terminal
    before = termios.tcgetattr(theirs)
    with pytest.raises(KeyboardInterrupt), Keyboard() as keyboard:
        os.kill(os.getpid(), signal.SIGHUP)
        keyboard.wait(60)
    assert termios.tcgetattr(theirs) == before


def test_without_a_terminal_it_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with Keyboard() as keyboard:
        assert keyboard.wait(0.01) == ""
