"""Servers in the background on a machine that is made up: found, started, stopped."""

import json
import os
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx import __version__
from omlx.client import RunningServer
from omlx.errors import ServerError
from omlx.launch.background import Found, clean, find, log_path, start, stop
from omlx.settings.build import Resolved, load
from tests.fakes.machine import BEGAN, FakeChild, FakeMachine, Spawn
from tests.live import REPOSITORY

ADDRESS = "http://127.0.0.1:8123"
PID = 500


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def settings(home: Path, **cli: str) -> Resolved:
    return load(cli={"server.port": "8123", **cli}, env={"OMLX_HOME": str(home)}, cwd=home.parent)


def leave_state(home: Path, pid: int = PID, *, port: int = 8123, **more: Any) -> Path:
    """A state file as a server writes it; values of None are left out."""
    state = {
        "pid": pid,
        "address": f"http://127.0.0.1:{port}",
        "version": __version__,
        "process_started": BEGAN,
        **more,
    }
    path = home / "state" / f"server-{port}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({k: v for k, v in state.items() if v is not None}))
    return path


def server(home: Path, machine: FakeMachine) -> RunningServer:
    (found,) = find(home / "state", machine=machine).servers
    return found


# ---- finding


def test_only_the_process_that_wrote_the_file_is_a_server(home: Path, machine: FakeMachine) -> None:
    machine.run(1)
    machine.run(2, began=BEGAN + 60)  # has the id of a server that is gone
    machine.omlx.discard(2)
    leave_state(home, 1, port=8001)
    leave_state(home, 2, port=8002)
    leave_state(home, 3, port=8003)
    found = find(home / "state", machine=machine)
    assert [one.pid for one in found.servers] == [1]
    assert [one.reason for one in found.stale] == [
        "process 2 is another program now",
        "process 3 has ended",
    ]
    assert machine.signals == []


def test_a_file_of_an_older_version_is_held_against_the_time_in_it(
    home: Path, machine: FakeMachine
) -> None:
    started = "1970-01-12T13:46:45+00:00"  # BEGAN and 5 s
    leave_state(home, 1, port=8001, process_started=None, started=started)
    leave_state(home, 2, port=8002, process_started=None, started=started)
    machine.run(1)
    machine.run(2, began=BEGAN + 60)
    machine.omlx.discard(2)
    found = find(home / "state", machine=machine)
    assert [one.pid for one in found.servers] == [1]
    assert len(found.stale) == 1


def test_after_the_clock_was_set_a_server_is_known_by_its_answer(
    home: Path, machine: FakeMachine
) -> None:
    leave_state(home, 1)
    machine.run(1, began=BEGAN + 3600)
    assert find(home / "state", machine=machine).servers == ()
    machine.words[ADDRESS] = "ready"
    assert server(home, machine).pid == 1
    machine.omlx.discard(1)  # something answers there, but that process is no omlx
    assert find(home / "state", machine=machine).servers == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b"[" * 9000, b"[1]", b'{"pid": "1"}', b'{"pid": -1, "address": "", "version": ""}',
     b'{"pid": 1, "address": 7, "version": "1"}', b"\xff\xfe", b" " * 200_000,
     b'{"pid": 1' + b"0" * 5000 + b"}"],
)  # fmt: skip
def test_hostile_files_are_stale(home: Path, machine: FakeMachine, content: bytes) -> None:
    machine.run(1)
    path = home / "state" / "server-8123.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = find(home / "state", machine=machine)
    assert found.servers == () and [one.path for one in found.stale] == [path]
    assert [one.path for one in clean(home / "state", machine=machine)] == [path]
    assert find(home / "state", machine=machine) == Found((), ())


def test_a_huge_file_is_stale_whatever_it_begins_with(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    path = leave_state(home)
    path.write_text(path.read_text() + " " * 200_000)
    assert find(home / "state", machine=machine).servers == ()


def test_odd_values_beside_the_pid_are_passed_over(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    leave_state(home, started=5, drain_s="x", log=["/"], launched={"arguments": [1], "cwd": "/"})
    found = server(home, machine)
    assert (found.started, found.drain_s, found.log_path, found.launched) == (None,) * 4
    leave_state(home, drain_s=1e400, log="a\0b", started="1-1-1", launched={"arguments": "x"})
    found = server(home, machine)
    assert (found.started, found.drain_s, found.log_path, found.launched) == (None,) * 4


def test_links_pipes_and_folders_are_no_state_files(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    real = leave_state(home)
    elsewhere = real.rename(home / "real.json")
    folder = home / "state"
    (folder / "server-1.json").symlink_to(elsewhere)
    os.mkfifo(folder / "server-2.json")
    (folder / "server-3.json").mkdir()
    found = find(folder, machine=machine)
    assert found.servers == () and len(found.stale) == 3
    removed = clean(folder, machine=machine)
    assert [one.path.name for one in removed] == ["server-1.json", "server-2.json"]
    assert elsewhere.exists()


# ---- starting


class Serving:
    """What the process does that `start` starts: writes its state after a while, and answers."""

    def __init__(self, machine: FakeMachine, home: Path, after_s: float = 2.0) -> None:
        self.machine, self.home, self.after_s = machine, home, after_s
        machine.on_spawn = self

    def __call__(self, child: FakeChild, how: Spawn) -> None:
        def listen() -> None:
            leave_state(self.home, child.pid)
            self.machine.words[ADDRESS] = "loading"

        os.write(how.output, b"models are looked for\n")
        self.machine.plan(self.after_s, listen)


def test_a_start_waits_until_the_server_answers(home: Path, machine: FakeMachine) -> None:
    Serving(machine, home, after_s=7)
    said: list[str] = []
    started = start(
        ["--port=8123", "--model-dir=x"],
        resolved=settings(home),
        on_progress=said.append,
        env={"A": "b"},
        machine=machine,
    )
    assert (started.server.pid, started.is_new) == (PID, True)
    (how,) = machine.spawned
    assert list(how.words[1:]) == ["-m", "omlx", "serve", "--port=8123", "--model-dir=x"]
    assert how.cwd == home.parent
    log = home / "logs" / "serve-8123.log"
    assert how.env == {
        "A": "b",
        "OMLX_HOME": str(home),
        "OMLX_LOG_FILE": str(log),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONSAFEPATH": "1",
    }
    assert f"{PID}" in said[0] and str(log) in said[0]
    assert said[1].endswith("s: models are looked for")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert machine.signals == []


def test_a_log_that_is_named_is_taken(home: Path, machine: FakeMachine, tmp_path: Path) -> None:
    Serving(machine, home)
    mine = tmp_path / "mine.log"
    resolved = settings(home, **{"log.file": str(mine)})
    assert log_path(resolved) == mine
    start([], resolved=resolved, machine=machine)
    assert machine.spawned[0].env["OMLX_LOG_FILE"] == str(mine)
    assert mine.exists()


def test_what_the_log_warns_of_is_told(home: Path, machine: FakeMachine) -> None:
    Serving(machine, home)
    first = machine.on_spawn

    def warn(child: FakeChild, how: Spawn) -> None:
        first(child, how)
        os.write(how.output, b"2026-01-01T00:00:00.000 WARNING omlx.server no disk\nmore\n")

    machine.on_spawn = warn
    said: list[str] = []
    start([], resolved=settings(home), machine=machine, on_progress=said.append)
    assert said[1:] == ["warning: no disk"]


def test_the_words_of_a_server_that_ends_are_the_error(home: Path, machine: FakeMachine) -> None:
    log = log_path(settings(home))
    log.parent.mkdir(parents=True)
    log.write_text("error: of yesterday\n")

    def fail(child: FakeChild, how: Spawn) -> None:
        os.write(how.output, b"warning: odd\nerror: port 8123 is taken\nhint: take another\n")
        machine.plan(1, lambda: machine.end(child.pid, 1))

    machine.on_spawn = fail
    with pytest.raises(ServerError) as caught:
        start([], resolved=settings(home), machine=machine)
    assert caught.value.message == "port 8123 is taken"
    assert caught.value.hint == f"take another; its log is {log}"
    assert caught.value.exit_code == 1


def test_a_crash_is_told_with_its_last_lines(home: Path, machine: FakeMachine) -> None:
    def crash(child: FakeChild, how: Spawn) -> None:
        os.write(how.output, b"Fatal Python error: it broke\n")
        os.write(how.output, "".join(f"line {n}\n" for n in range(50)).encode())
        os.write(how.output, b"terminate called")
        machine.plan(1, lambda: machine.end(child.pid, -signal.SIGABRT))

    machine.on_spawn = crash
    with pytest.raises(ServerError, match="ended by SIGABRT before it answered") as caught:
        start([], resolved=settings(home), machine=machine)
    assert caught.value.message.endswith("  line 49\n  terminate called")
    assert "  Fatal Python error: it broke\n  ...\n  line 39\n" in caught.value.message
    assert str(log_path(settings(home))) in caught.value.hint


def test_a_start_that_takes_too_long_is_ended(home: Path, machine: FakeMachine) -> None:
    machine.deaf.add(PID)
    with pytest.raises(ServerError, match="did not answer within 30 s"):
        start([], resolved=settings(home), machine=machine, timeout_s=30)
    assert machine.signals == [(PID, signal.SIGTERM), (PID, signal.SIGKILL)]
    assert machine.alive == {}


def test_ctrl_c_ends_what_was_started(home: Path, machine: FakeMachine) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    machine.plan(1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        start([], resolved=settings(home), machine=machine)
    assert machine.signals == [(PID, signal.SIGTERM)]


def test_a_server_that_runs_is_not_started_again(home: Path, machine: FakeMachine) -> None:
    machine.run(7)
    leave_state(home, 7)
    machine.words[ADDRESS] = "ready"
    started = start([], resolved=settings(home), machine=machine)
    assert (started.server.pid, started.is_new, machine.spawned) == (7, False, [])


def test_an_older_server_on_the_port_is_named(home: Path, machine: FakeMachine) -> None:
    """L2: an upgrade leaves the old process running."""
    machine.run(7)
    leave_state(home, 7, version="0.0.1")
    machine.words[ADDRESS] = "ready"
    with pytest.raises(ServerError, match=r"omlx 0\.0\.1 runs at .*8123 already, as process 7"):
        start([], resolved=settings(home), machine=machine)
    assert machine.spawned == [] and machine.signals == []


def test_a_server_that_is_stopping_is_waited_for(home: Path, machine: FakeMachine) -> None:
    machine.run(7)
    path = leave_state(home, 7)
    machine.words[ADDRESS] = "stopping"
    Serving(machine, home)

    def end() -> None:
        machine.end(7)
        path.unlink()
        del machine.words[ADDRESS]

    machine.plan(3, end)
    said: list[str] = []
    started = start([], resolved=settings(home), machine=machine, on_progress=said.append)
    assert (started.server.pid, started.is_new) == (PID, True)
    assert said[0] == f"waits for process 7 at {ADDRESS} to end"


def test_a_server_that_does_not_answer_is_an_error(home: Path, machine: FakeMachine) -> None:
    machine.run(7)
    leave_state(home, 7)
    with pytest.raises(ServerError, match="process 7 at .* does not answer") as caught:
        start([], resolved=settings(home), machine=machine, timeout_s=20)
    assert "omlx stop --port 8123" in caught.value.hint
    assert machine.spawned == [] and machine.signals == []


def test_a_stale_file_does_not_hinder_a_start(home: Path, machine: FakeMachine) -> None:
    leave_state(home, 7)
    Serving(machine, home)
    assert start([], resolved=settings(home), machine=machine).is_new


def test_a_second_start_waits_for_the_first(home: Path, machine: FakeMachine) -> None:
    """Both are of one machine: the second one begins while the first one waits."""
    second: list[Any] = []

    def try_again() -> None:
        with pytest.raises(ServerError, match="another omlx start of the same server"):
            start([], resolved=settings(home), machine=machine, timeout_s=0, on_progress=print)
        second.append(len(machine.spawned))

    Serving(machine, home, after_s=5)
    machine.plan(1, try_again)
    first = start([], resolved=settings(home), machine=machine)
    assert first.is_new and second == [1]
    assert not start([], resolved=settings(home), machine=machine).is_new
    assert len(machine.spawned) == 1


# ---- L5: places that can't be written


def test_l5_a_state_folder_that_is_a_file(home: Path, machine: FakeMachine) -> None:
    home.mkdir()
    (home / "state").write_text("")
    with pytest.raises(ServerError, match="state folder .* cannot be written") as caught:
        start([], resolved=settings(home), machine=machine)
    assert "OMLX_HOME" in caught.value.hint and machine.spawned == []


def test_l5_a_log_folder_that_is_a_file(home: Path, machine: FakeMachine) -> None:
    home.mkdir()
    (home / "logs").write_text("")
    with pytest.raises(ServerError, match=r"log .*serve-8123\.log cannot be written") as caught:
        start([], resolved=settings(home), machine=machine)
    assert "--log-file" in caught.value.hint and machine.spawned == []


def test_l5_a_lock_that_is_a_link(home: Path, machine: FakeMachine, tmp_path: Path) -> None:
    (home / "state").mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (home / "state" / "start-8123.lock").symlink_to(precious)
    with pytest.raises(ServerError, match="state folder"):
        start([], resolved=settings(home), machine=machine)
    assert precious.read_text() == "keep"


def test_l5_a_full_disk_is_said_before_anything_is_started(
    home: Path, machine: FakeMachine
) -> None:
    machine.is_full = True
    with pytest.raises(ServerError, match="cannot be written: No space left on device"):
        start([], resolved=settings(home), machine=machine)
    assert machine.spawned == []


def test_l5_a_program_that_cannot_be_started(home: Path, machine: FakeMachine) -> None:
    def fail(child: FakeChild, how: Mapping[str, str]) -> None:
        raise PermissionError(13, "Permission denied")

    machine.on_spawn = fail  # type: ignore[assignment]
    with pytest.raises(ServerError, match="omlx serve cannot be started: .*Permission denied"):
        start([], resolved=settings(home), machine=machine)


# ---- stopping


def test_a_stop_waits_for_the_process_and_removes_its_file(
    home: Path, machine: FakeMachine
) -> None:
    machine.run(PID, 501)
    path = leave_state(home)
    machine.on_end = lambda pid: machine.end(501)
    ended = stop(server(home, machine), machine=machine)
    assert machine.signals == [(PID, signal.SIGTERM)]
    assert ended.num_killed == 0 and not path.exists()


def test_what_does_not_end_is_killed_with_its_engines(home: Path, machine: FakeMachine) -> None:
    machine.run(PID, 501, 502)
    machine.deaf.add(PID)
    path = leave_state(home)
    said: list[str] = []
    ended = stop(server(home, machine), machine=machine, on_progress=said.append)
    assert machine.signals[0] == (PID, signal.SIGTERM)
    assert set(machine.signals[1:]) == {(pid, signal.SIGKILL) for pid in (PID, 501, 502)}
    assert ended.num_killed == 3 and 15 <= ended.seconds < 16
    assert machine.alive == {} and not path.exists()
    assert said[0].endswith(f"process {PID} is stopping")


def test_the_drain_limit_of_the_server_is_waited_for(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    machine.deaf.add(PID)
    leave_state(home, drain_s=60)
    assert 65 <= stop(server(home, machine), machine=machine).seconds < 66


def test_engines_that_stay_are_killed(home: Path, machine: FakeMachine) -> None:
    machine.run(PID, 501)
    leave_state(home)
    ended = stop(server(home, machine), machine=machine)
    assert machine.signals == [(PID, signal.SIGTERM), (501, signal.SIGKILL)]
    assert ended.num_killed == 1


def test_an_engine_that_is_started_while_a_server_stops_is_killed_as_well(
    home: Path, machine: FakeMachine
) -> None:
    machine.run(PID)
    machine.deaf.add(PID)
    leave_state(home)
    found = server(home, machine)
    machine.plan(2, lambda: machine.run(PID, 509))
    stop(found, machine=machine)
    assert (509, signal.SIGKILL) in machine.signals


def test_what_cannot_be_killed_is_an_error(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    machine.deaf.add(PID)
    machine.undead.add(PID)
    leave_state(home)
    with pytest.raises(ServerError, match=f"process {PID} cannot be ended"):
        stop(server(home, machine), machine=machine)


def test_another_program_with_the_id_is_never_signalled(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    path = leave_state(home)
    found = server(home, machine)
    machine.run(PID, began=BEGAN + 100)
    machine.omlx.clear()
    stop(found, machine=machine)
    assert machine.signals == [] and not path.exists()


def test_the_file_of_a_server_that_came_after_stays(home: Path, machine: FakeMachine) -> None:
    machine.run(PID)
    path = leave_state(home)
    found = server(home, machine)
    machine.run(600)
    leave_state(home, 600)
    stop(found, machine=machine)
    assert path.exists() and server(home, machine).pid == 600
