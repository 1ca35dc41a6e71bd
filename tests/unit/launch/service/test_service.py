"""A service from its installation to its end, with a supervisor and processes that are made up."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from omlx import __version__
from omlx.errors import ServerError
from omlx.launch.service.service import (
    any_installed,
    install,
    installed,
    is_of,
    oddities,
    runs,
    start,
    uninstall,
)
from omlx.launch.service.spec import Spec, State, Word, spec_of
from omlx.settings.build import load
from tests.fakes.machine import BEGAN, FakeMachine
from tests.fakes.supervisor import FakeSupervisor

PID = 500
ADDRESS = "http://127.0.0.1:8123"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def supervisor(tmp_path: Path) -> FakeSupervisor:
    return FakeSupervisor(tmp_path / "units" / "omlx.service")


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def spec(home: Path, *arguments: str) -> Spec:
    resolved = load(cli={"server.port": "8123"}, env={"OMLX_HOME": str(home)}, cwd=home.parent)
    return spec_of(arguments or ("--port=8123",), resolved, {"PATH": "/bin"})


def leave_state(home: Path, pid: int = PID) -> Path:
    state = {"pid": pid, "address": ADDRESS, "version": __version__, "process_started": BEGAN}
    path = home / "state" / "server-8123.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state))
    return path


def serving(home: Path, machine: FakeMachine, pid: int = PID) -> Any:
    """What a start leads to: a process that answers."""

    def begin() -> State:
        machine.run(pid)
        machine.words[ADDRESS] = "ready"
        leave_state(home, pid)
        return State(Word.RUNNING, pid)

    return begin


# ---- install


def test_a_file_is_written_and_loaded(home: Path, supervisor: FakeSupervisor) -> None:
    assert install(spec(home), supervisor)
    assert supervisor.calls == ["load"]
    assert supervisor.path.stat().st_mode & 0o777 == 0o644
    found = installed(home, supervisor)
    assert found is not None and not found.is_edited
    assert found.written.arguments == ("--port=8123",) and found.written.home == home
    assert not install(spec(home), supervisor)  # again: nothing changes
    assert install(spec(home, "--port=8124"), supervisor)
    assert [path.name for path in supervisor.path.parent.iterdir()] == ["omlx.service"]


def test_without_a_supervisor_nothing_is_written(home: Path, supervisor: FakeSupervisor) -> None:
    supervisor.is_absent = True
    with pytest.raises(ServerError, match="nobody supervises"):
        install(spec(home), supervisor)
    assert not supervisor.path.exists() and not home.exists()


def test_a_refused_file_is_taken_back(home: Path, supervisor: FakeSupervisor) -> None:
    supervisor.refuses = "load"
    with pytest.raises(ServerError, match="refused"):
        install(spec(home), supervisor)
    assert not supervisor.path.exists()
    supervisor.refuses = ""
    install(spec(home), supervisor)
    before = supervisor.path.read_bytes()
    supervisor.refuses = "load"
    with pytest.raises(ServerError, match="refused"):
        install(spec(home, "--port=1"), supervisor)
    assert supervisor.path.read_bytes() == before


def test_what_somebody_edited_is_not_lost(home: Path, supervisor: FakeSupervisor) -> None:
    install(spec(home), supervisor)
    edited = supervisor.path.read_bytes() + b"Nice=5\n"
    supervisor.path.write_bytes(edited)
    for act in (
        lambda: install(spec(home), supervisor),
        lambda: uninstall(any_installed(supervisor), home),  # type: ignore[arg-type]
    ):
        with pytest.raises(ServerError, match="was edited") as caught:
            act()
        assert "--force" in caught.value.hint
    assert supervisor.path.read_bytes() == edited
    found = any_installed(supervisor)
    assert found is not None
    uninstall(found, home, force=True)
    assert not supervisor.path.exists()
    assert (home / "state" / "service.edited").read_bytes() == edited


def test_forced_replacement_keeps_a_copy(home: Path, supervisor: FakeSupervisor) -> None:
    install(spec(home), supervisor)
    edited = supervisor.path.read_bytes() + b"Nice=5\n"
    supervisor.path.write_bytes(edited)
    assert install(spec(home), supervisor, force=True)
    assert (home / "state" / "service.edited").read_bytes() == edited


def test_the_service_of_another_folder_is_left_alone(
    home: Path, supervisor: FakeSupervisor, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    install(spec(other), supervisor)
    assert installed(home, supervisor) is None and installed(other, supervisor) is not None
    with pytest.raises(ServerError, match="service of another folder"):
        install(spec(home), supervisor)
    assert any(str(other) in text for text in oddities(supervisor, home, sys.executable))
    assert install(spec(home), supervisor, force=True)


def test_two_installations_are_told(home: Path, supervisor: FakeSupervisor, tmp_path: Path) -> None:
    assert oddities(supervisor, home, sys.executable) == []
    install(spec(home), supervisor)
    assert oddities(supervisor, home, sys.executable) == []
    (said,) = oddities(supervisor, home, "/opt/homebrew/bin/python3")
    assert sys.executable in said and "another installation" in said
    brew = tmp_path / "homebrew.mxcl.omlx.plist"
    brew.touch()
    supervisor.others = (brew,)
    (said,) = oddities(supervisor, home, sys.executable)
    assert str(brew) in said


def test_an_installation_that_is_gone_is_told(home: Path, supervisor: FakeSupervisor) -> None:
    install(spec(home), supervisor)
    text = supervisor.path.read_text().replace(sys.executable, "/no/such/python")
    supervisor.path.write_text(text)
    assert oddities(supervisor, home, sys.executable) == [
        "the service starts /no/such/python, which is gone"
    ]


def test_a_service_is_removed_also_where_nobody_supervises(
    home: Path, supervisor: FakeSupervisor
) -> None:
    install(spec(home), supervisor)
    supervisor.is_absent = True
    found = any_installed(supervisor)
    assert found is not None
    uninstall(found, home)
    assert not supervisor.path.exists() and supervisor.calls == ["load"]


def test_a_service_is_ended_before_it_is_removed(home: Path, supervisor: FakeSupervisor) -> None:
    install(spec(home), supervisor)
    found = any_installed(supervisor)
    assert found is not None
    supervisor.refuses = "unload"
    with pytest.raises(ServerError):
        uninstall(found, home)
    assert supervisor.path.exists()
    supervisor.refuses = ""
    uninstall(found, home)
    assert supervisor.calls[-2:] == ["unload", "forget"] and not supervisor.path.exists()


# ---- start


def test_a_start_waits_until_the_server_answers(
    home: Path, supervisor: FakeSupervisor, machine: FakeMachine
) -> None:
    install(spec(home), supervisor)
    stale = leave_state(home, 4)  # of a process that is gone
    begin = serving(home, machine)

    def slowly() -> State:
        assert not stale.exists()
        machine.plan(3.0, begin)
        return State(Word.RUNNING, PID)

    supervisor.on_start = slowly
    service = installed(home, supervisor)
    assert service is not None
    server, is_new = start(service, home, machine=machine)
    assert (server.pid, is_new) == (PID, True) and machine.time >= 3.0
    assert is_of(service, server) and runs(service)
    again, is_new = start(service, home, machine=machine)
    assert (again.pid, is_new) == (PID, False)
    assert supervisor.calls.count("start") == 1
    supervisor.on_start = begin
    start(service, home, again=True, machine=machine)
    assert supervisor.calls[-1] == "restart"


def test_a_start_replaces_a_server_of_another_version(
    home: Path, supervisor: FakeSupervisor, machine: FakeMachine
) -> None:
    install(spec(home), supervisor)
    service = installed(home, supervisor)
    assert service is not None
    supervisor.now = serving(home, machine)()
    path = home / "state" / "server-8123.json"
    path.write_text(path.read_text().replace(__version__, "0.0.1"))
    supervisor.on_start = serving(home, machine, PID + 1)
    server, is_new = start(service, home, machine=machine)
    assert (server.pid, is_new) == (PID + 1, True) and supervisor.calls[-1] == "restart"


@pytest.mark.parametrize(
    "end",
    [
        State(Word.WAITING, None, 0, 1),
        State(Word.FAILED, None, 0, 1),
        State(Word.RUNNING, PID, 1, 1),  # it ended and was started again between two looks
    ],
)
def test_a_start_that_fails_says_why_and_does_not_go_on(
    home: Path, supervisor: FakeSupervisor, machine: FakeMachine, end: State
) -> None:
    install(spec(home), supervisor)
    service = installed(home, supervisor)
    assert service is not None
    output = service.output(home)
    output.write_text("error: of an earlier start\n")

    def fail() -> State:
        with output.open("a") as file:
            file.write("error: port 8123 is taken\nhint: take another\n")
        return end

    supervisor.on_start = fail
    with pytest.raises(ServerError, match="^port 8123 is taken$") as caught:
        start(service, home, machine=machine)
    assert "take another" in caught.value.hint and str(output) in caught.value.hint
    assert supervisor.calls[-1] == "stop"


def test_a_start_that_hangs_ends(
    home: Path, supervisor: FakeSupervisor, machine: FakeMachine
) -> None:
    install(spec(home), supervisor)
    service = installed(home, supervisor)
    assert service is not None
    supervisor.on_start = lambda: State(Word.RUNNING, PID)
    with pytest.raises(ServerError, match="did not answer within 10 s"):
        start(service, home, timeout_s=10, machine=machine)
    assert supervisor.calls[-1] == "stop"
