"""start, stop, restart, status and logs, with processes that are made up."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import omlx.launch.background
from omlx import __version__
from omlx.cli.arguments import anchored, arguments_of, merged, secrets_of
from omlx.cli.serve import serve
from omlx.client import RunningServer, state_name
from omlx.errors import OmlxError, ServerError
from omlx.launch.background import Started, Stopped
from omlx.settings.build import Resolved
from tests.fakes.http import JsonServer
from tests.unit.cli.conftest import Cli

HEALTH = {
    "status": "ready",
    "models": [{"id": "a", "state": "ready"}, {"id": "b", "state": "unloaded"}],
}


class FakeStart:
    """Stands in for the start of a process."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], Resolved, dict[str, str]]] = []
        self.is_new = True
        self.error: ServerError | None = None

    def __call__(
        self,
        arguments: tuple[str, ...],
        *,
        resolved: Resolved,
        env: dict[str, str],
        on_progress: Callable[[str], None],
    ) -> Started:
        self.calls.append((arguments, resolved, env))
        if self.error is not None:
            raise self.error
        port = resolved.settings.server.port
        server = RunningServer(77, f"http://127.0.0.1:{port}", __version__, log_path=Path("/l"))
        return Started(server, self.is_new)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> FakeStart:
    fake = FakeStart()
    monkeypatch.setattr(omlx.launch.background, "start", fake)
    return fake


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    addresses: list[str] = []

    def stop(server: RunningServer, *, on_progress: Callable[[str], None]) -> Stopped:
        addresses.append(server.address)
        assert server.state_path is not None
        server.state_path.unlink()
        return Stopped(server, 0, 1.0)

    monkeypatch.setattr(omlx.launch.background, "stop", stop)
    return addresses


@pytest.fixture
def live() -> Iterator[JsonServer]:
    with JsonServer({"/health": HEALTH}) as server:
        yield server


def leave_state(home: Path, address: str, **more: Any) -> Path:
    """The state file of a server that this process stands in for."""
    state = {
        "pid": os.getpid(),
        "address": address,
        "version": __version__,
        "process_started": psutil.Process().create_time(),
        "started": "2026-01-01T00:00:00+00:00",
        **more,
    }
    path = home / "state" / state_name(address)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state))
    return path


# ---- options as a command line


def options(*args: str) -> dict[str, Any]:
    with serve.make_context("serve", list(args)) as ctx:
        return dict(ctx.params)


def test_options_become_a_command_line_and_come_back() -> None:
    given = options(
        "--port", "1", "--no-cache", "--journal-text", "--model-dir", "a", "--model-dir", "-b",
        "--demo", "--profile", "p", "--host", "", "--no-thinking", "--temperature", "0",
    )  # fmt: skip
    words = arguments_of(given)
    assert "--no-cache" in words and "--model-dir=-b" in words and "--no-thinking" in words
    assert options(*words) == given


def test_secrets_are_kept_out_of_command_lines() -> None:
    given = options("--api-key", "hush", "--port", "1")
    assert arguments_of(given) == ("--port=1",)
    assert secrets_of(given) == {"OMLX_SERVER_API_KEY": "hush"}


def test_options_given_now_replace_earlier_ones(tmp_path: Path) -> None:
    earlier = ("--port=1", "--model-dir=/a", "--model-dir=/b", "--demo", "--thinking", "--cache")
    now = anchored(options("--model-dir", "c", "--no-thinking", "--log-level", "debug"), tmp_path)
    assert arguments_of(merged(earlier, now)) == (
        "--port=1", f"--model-dir={tmp_path}/c", "--cache", "--log-level=debug", "--no-thinking",
        "--demo",
    )  # fmt: skip
    assert arguments_of(merged(earlier, options())) == (
        "--port=1", "--model-dir=/a", "--model-dir=/b", "--cache", "--thinking", "--demo",
    )  # fmt: skip


def test_options_of_another_version_are_an_error() -> None:
    with pytest.raises(OmlxError, match="options of another version: No such option '--old'"):
        merged(("--old=1",), options())


# ---- start


def test_start_gives_the_options_on(cli: Cli, starts: FakeStart, tmp_path: Path) -> None:
    outcome = cli("start", "--port", "8123", "--model-dir", "m", "--api-key", "hush")
    assert outcome.code == 0
    ((arguments, resolved, env),) = starts.calls
    assert arguments == ("--port=8123", "--model-dir=m")
    assert resolved.cwd == tmp_path / "cwd"
    assert env["OMLX_SERVER_API_KEY"] == "hush" and env["PATH"] == os.environ["PATH"]
    assert outcome.out.splitlines() == [
        "omlx serves at http://127.0.0.1:8123",
        "process: 77",
        "log: /l",
        "omlx stop --port 8123 ends it",
    ]
    assert "OMLX_SERVER_API_KEY is not kept" in outcome.err and "hush" not in outcome.err


def test_start_as_json_and_where_one_runs(cli: Cli, starts: FakeStart) -> None:
    starts.is_new = False
    outcome = cli("start", "--port", "8123", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == {
        "address": "http://127.0.0.1:8123",
        "pid": 77,
        "version": __version__,
        "log": "/l",
        "is_new": False,
    }
    assert cli("start").out.startswith("omlx runs already at http://127.0.0.1:8000\n")


def test_start_fails_as_the_server_does(cli: Cli, starts: FakeStart) -> None:
    starts.error = ServerError("port 8000 is taken", hint="take another")
    outcome = cli("start")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: port 8000 is taken\nhint: take another\n"


def test_wrong_settings_start_nothing(cli: Cli, starts: FakeStart) -> None:
    assert cli("start", "--port", "x").code == 2
    assert starts.calls == []


def test_l1_the_port_that_counts_is_said(
    cli: Cli, starts: FakeStart, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: flag before variable before file, one truth, and the others are named."""
    home.mkdir()
    (home / "config.toml").write_text("[server]\nport = 8001\n")
    assert "8001" in cli("start").out
    monkeypatch.setenv("OMLX_SERVER_PORT", "8002")
    outcome = cli("start")
    assert "http://127.0.0.1:8002" in outcome.out
    said = f"port 8002 (env OMLX_SERVER_PORT) comes before 8001 (file {home}/config.toml:2)"
    assert said in outcome.err
    outcome = cli("start", "--port", "8003")
    assert "http://127.0.0.1:8003" in outcome.out
    assert "port 8003 (cli --port) comes before 8002 (env OMLX_SERVER_PORT), 8001" in outcome.err


# ---- stop


def test_stop_where_nothing_runs(cli: Cli, home: Path, stops: list[str]) -> None:
    assert cli("stop") == cli("stop", "--all")
    outcome = cli("stop")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "no server is running\n")
    assert cli("stop", "--port", "8123").err == "no server is running on port 8123\n"
    path = leave_state(home, "http://127.0.0.1:8001", process_started=5.0)
    outcome = cli("stop")
    assert outcome.code == 0 and stops == [] and not path.exists()
    assert f"removed {path}: process {os.getpid()} is another program now" in outcome.err


def test_stop_also_where_the_settings_are_wrong(cli: Cli, home: Path, stops: list[str]) -> None:
    leave_state(home, "http://127.0.0.1:8001")
    (home / "config.toml").write_text("[")
    assert cli("stop").code == 0 and stops == ["http://127.0.0.1:8001"]


def test_stop_of_several_servers(cli: Cli, home: Path, stops: list[str]) -> None:
    leave_state(home, "http://127.0.0.1:8001")
    leave_state(home, "http://127.0.0.1:8002")
    leave_state(home, "unix:/run/s")
    outcome = cli("stop")
    assert (outcome.code, stops) == (2, [])
    assert "3 servers run: http://127.0.0.1:8001 (process" in outcome.err
    assert "--port or --all" in outcome.err
    assert cli("stop", "--port", "8002").code == 0
    assert stops == ["http://127.0.0.1:8002"]
    assert cli("stop", "--all").code == 0
    assert len(stops) == 3


# ---- restart


def launched(cwd: Path, *arguments: str, withheld: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"launched": {"arguments": arguments, "cwd": str(cwd), "withheld": withheld}}


def test_restart_keeps_the_options_and_the_folder(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str], tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    leave_state(home, "http://127.0.0.1:8001", **launched(there, "--port=8001", "--no-cache"))
    outcome = cli("restart", "--log-level", "debug", "--model-dir", "m")
    assert outcome.code == 0, outcome.err
    ((arguments, resolved, _),) = starts.calls
    here = tmp_path / "cwd"
    assert arguments == ("--port=8001", f"--model-dir={here}/m", "--no-cache", "--log-level=debug")
    assert resolved.cwd == there and resolved.settings.cache.enabled is False
    assert stops == ["http://127.0.0.1:8001"]


def test_l1_a_restart_takes_the_port_of_the_file_as_it_is_now(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str], tmp_path: Path
) -> None:
    leave_state(home, "http://127.0.0.1:8001", **launched(tmp_path))
    (home / "config.toml").write_text("[server]\nport = 8009\n")
    outcome = cli("restart")
    assert stops == ["http://127.0.0.1:8001"]
    assert outcome.out.startswith("omlx serves at http://127.0.0.1:8009\n")
    leave_state(home, "http://127.0.0.1:8009", **launched(tmp_path))
    outcome = cli("restart", "--port", "8010")  # moves the only one there
    assert stops[1:] == ["http://127.0.0.1:8009"]
    assert outcome.out.startswith("omlx serves at http://127.0.0.1:8010\n")


def test_restart_of_several_servers(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str], tmp_path: Path
) -> None:
    for port in (8001, 8002):
        leave_state(home, f"http://127.0.0.1:{port}", **launched(tmp_path, f"--port={port}"))
    outcome = cli("restart")
    assert outcome.code == 2 and "--port says which" in outcome.err and stops == []
    assert cli("restart", "--port", "8002").code == 0
    assert stops == ["http://127.0.0.1:8002"]


def test_restart_never_opens_a_server_that_had_a_key(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str], tmp_path: Path
) -> None:
    address = "http://127.0.0.1:8001"
    leave_state(home, address, **launched(tmp_path, withheld=("--api-key",)))
    outcome = cli("restart")
    assert outcome.code == 1 and "OMLX_SERVER_API_KEY" in outcome.err
    assert stops == [] and starts.calls == []
    assert cli("restart", "--api-key", "hush").code == 0
    assert starts.calls[0][2]["OMLX_SERVER_API_KEY"] == "hush"


def test_restart_stops_nothing_where_it_could_not_start(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str], tmp_path: Path
) -> None:
    path = leave_state(home, "http://127.0.0.1:8001", **launched(tmp_path / "gone"))
    outcome = cli("restart")
    assert outcome.code == 1 and "started in is gone" in outcome.err
    leave_state(home, "http://127.0.0.1:8001", **launched(tmp_path, "--port=99999"))
    assert cli("restart").code == 2
    assert stops == [] and starts.calls == [] and path.exists()


def test_a_restart_that_fails_says_that_the_old_server_is_gone(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str], tmp_path: Path
) -> None:
    leave_state(home, "http://127.0.0.1:8001", **launched(tmp_path))
    starts.error = ServerError("no model fits", hint="serve a smaller one")
    outcome = cli("restart")
    assert outcome.code == 1 and stops == ["http://127.0.0.1:8001"]
    assert outcome.err.endswith(
        "error: no model fits\nhint: serve a smaller one; the server that ran before is stopped\n"
    )
    assert "ran before" not in cli("restart").err


def test_restart_where_nothing_runs_starts(cli: Cli, starts: FakeStart, stops: list[str]) -> None:
    outcome = cli("restart", "--port", "8123")
    assert outcome.code == 0 and "one is started" in outcome.err
    assert starts.calls[0][0] == ("--port=8123",) and stops == []


def test_restart_of_a_version_that_kept_no_options(
    cli: Cli, home: Path, starts: FakeStart, stops: list[str]
) -> None:
    leave_state(home, "http://127.0.0.1:8000", version="0.0.1")
    outcome = cli("restart", "--no-cache")
    assert "does not say which options" in outcome.err
    assert starts.calls[0][0] == ("--no-cache",) and len(stops) == 1


# ---- status


def test_status_of_nothing(cli: Cli, home: Path) -> None:
    outcome = cli("status")
    assert (outcome.code, outcome.out, outcome.err) == (1, "no server is running\n", "")
    outcome = cli("status", "--json")
    nothing = {"servers": [], "stale": [], "service": None}
    assert (outcome.code, json.loads(outcome.out)) == (1, nothing)


def test_status_of_a_server(cli: Cli, home: Path, live: JsonServer) -> None:
    leave_state(home, live.address, version="0.0.1", log="/some.log")
    stale = leave_state(home, "http://127.0.0.1:1", process_started=5.0)
    outcome = cli("status")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == f"{live.address}  ready"
    assert lines[1].startswith(f"  process {os.getpid()}, omlx 0.0.1, up ")
    assert lines[2:5] == [
        f"  another version is installed; omlx restart --port {live.port} takes it",
        "  loaded: a; not loaded: 1",
        "  log: /some.log",
    ]
    assert lines[5].startswith(f"stale: {stale}: ")
    assert stale.exists()
    said = json.loads(cli("status", "--json").out)
    (server,) = said["servers"]
    assert server.pop("uptime_s") > 0
    assert server == {
        "address": live.address,
        "pid": os.getpid(),
        "version": "0.0.1",
        "is_outdated": True,
        "status": "ready",
        "models": HEALTH["models"],
        "lead": None,
        "cache": None,
        "last_error": None,
        "log": "/some.log",
    }
    assert said["stale"][0]["file"] == str(stale)


def test_status_of_a_server_that_tells_little_or_does_not_answer(
    cli: Cli, home: Path, live: JsonServer
) -> None:
    leave_state(home, live.address)
    live.answers = {"/health": {"status": "ready"}}
    assert "OMLX_SERVER_API_KEY" in cli("status").out
    live.answers = {"/health": {"status": "ready", "models": [1, {"id": 5}, None]}}
    assert "loaded: none; not loaded: 1" in cli("status").out
    live.raw = b"<html>"
    outcome = cli("status")
    assert outcome.code == 0 and f"{live.address}  no answer\n" in outcome.out
    assert json.loads(cli("status", "--json").out)["servers"][0]["models"] is None


def test_status_also_where_the_settings_are_wrong(cli: Cli, home: Path, live: JsonServer) -> None:
    leave_state(home, live.address)
    (home / "config.toml").write_text("[")
    outcome = cli("status")
    assert outcome.code == 0 and "warning: " in outcome.err


# ---- logs


def write_log(home: Path, name: str, text: str, age_s: float = 0) -> Path:
    path = home / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    return path


def test_logs_of_the_server_that_runs(cli: Cli, home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.log"
    mine.write_text("one\ntwo\nthree\n")
    write_log(home, "serve-8001.log", "newer\n")
    leave_state(home, "http://127.0.0.1:8009", log=str(mine))
    outcome = cli("logs", "-n", "2")
    assert (outcome.code, outcome.out, outcome.err) == (0, "two\nthree\n", "")
    assert cli("logs", "--port", "8001").out == "newer\n"


def test_logs_of_servers_that_are_gone(cli: Cli, home: Path, tmp_path: Path) -> None:
    outcome = cli("logs")
    assert outcome.code == 1 and "omlx start writes one" in outcome.err
    write_log(home, "serve-8001.log", "older\n", age_s=100)
    write_log(home, "serve-8002.log", "newer\n", age_s=50)
    assert cli("logs").out == "newer\n"
    assert cli("logs", "--port", "8001").out == "older\n"
    assert cli("logs", "--port", "8003").code == 1
    mine = tmp_path / "mine.log"
    mine.write_text("of one that was killed\n")
    leave_state(home, "http://127.0.0.1:8003", log=str(mine), process_started=5.0)
    assert cli("logs", "--port", "8003").out == "of one that was killed\n"


def test_logs_of_one_of_several_or_of_none_that_has_a_file(cli: Cli, home: Path) -> None:
    leave_state(home, "http://127.0.0.1:8001")
    outcome = cli("logs")
    assert outcome.code == 1
    assert f"logs to stderr of process {os.getpid()}" in outcome.err
    leave_state(home, "http://127.0.0.1:8002")
    assert cli("logs").code == 2


def test_a_terminal_gets_nothing_that_it_would_act_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from omlx.cli.logs import show

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show(["a\tb\x1b[2J\x9b1m\r"])
    assert capsys.readouterr().out == "a\tb\\x1b[2J\\x9b1m\\x0d\n"


def test_following_prints_what_comes(capsys: pytest.CaptureFixture[str]) -> None:
    from omlx.cli.logs import watch

    batches = [["a"], [], ["b", "c"]]
    pauses: list[float] = []

    def more() -> list[str]:
        if not batches:
            raise KeyboardInterrupt
        return batches.pop(0)

    with pytest.raises(KeyboardInterrupt):
        watch(more, pause=pauses.append)
    assert capsys.readouterr().out == "a\nb\nc\n" and len(pauses) == 1
