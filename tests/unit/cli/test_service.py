"""`omlx service`, and how start, stop, restart, status and logs drive one."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import omlx.launch.service.host
import omlx.launch.service.service
from omlx import __version__
from omlx.client import RunningServer
from omlx.launch.service.service import Installed
from omlx.launch.service.spec import State, Word
from tests.fakes.http import JsonServer
from tests.fakes.supervisor import FakeSupervisor
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_background import HEALTH, leave_state, starts, stops

__all__ = ["starts", "stops"]  # fixtures
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    fake = FakeSupervisor(tmp_path / "units" / "omlx.service")
    monkeypatch.setattr(omlx.launch.service.host, "this_supervisor", lambda: fake)
    return fake


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The starts of services that were asked for, and whether each was a restart."""
    calls: list[bool] = []

    def start(
        service: Installed, home: Path, *, again: bool, on_progress: Callable[[str], None]
    ) -> tuple[RunningServer, bool]:
        calls.append(again)
        return RunningServer(77, ADDRESS, __version__, log_path=Path("/l")), True

    monkeypatch.setattr(omlx.launch.service.service, "start", start)
    return calls


@pytest.fixture
def live() -> Iterator[JsonServer]:
    with JsonServer({"/health": HEALTH}) as server:
        yield server


def serve_as_service(supervisor: FakeSupervisor, home: Path, address: str = ADDRESS) -> None:
    """Have this process stand for the service's."""
    leave_state(home, address)
    supervisor.now = State(Word.RUNNING, os.getpid(), at_login=True)


# ---- install and uninstall


def test_install_keeps_the_options(
    cli: Cli, supervisor: FakeSupervisor, begun: list[bool], tmp_path: Path
) -> None:
    outcome = cli("service", "install", "--port", "8123", "--model-dir", "m %d")
    assert outcome.code == 0, outcome.err
    written = supervisor.read(supervisor.path.read_bytes())
    assert written.arguments == ("--port=8123", f"--model-dir={tmp_path}/cwd/m %d")
    assert f"wrote: {supervisor.path}" in outcome.err and "note: it is made up" in outcome.err
    assert outcome.out.startswith(f"omlx serves at {ADDRESS}\n")
    assert begun == [True]
    assert cli("service", "install", "--no-start").code == 0 and begun == [True]


def test_print_changes_nothing(cli: Cli, supervisor: FakeSupervisor, home: Path) -> None:
    supervisor.is_absent = True
    outcome = cli("service", "install", "--print", "--port", "8123")
    assert outcome.code == 0
    assert '"serve" "--port=8123"' in outcome.out and str(supervisor.path) in outcome.err
    assert not supervisor.path.exists() and not home.exists()


def test_secrets_and_variables_are_not_kept(
    cli: Cli, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = cli("service", "install", "--api-key", "hush")
    assert outcome.code == 2 and "OMLX_SERVER_API_KEY" in outcome.err
    assert "omlx key" in outcome.err and not supervisor.path.exists()
    monkeypatch.setenv("OMLX_SERVER_PORT", "8999")
    outcome = cli("service", "install")
    assert outcome.code == 0
    assert "warning: OMLX_SERVER_PORT is set here, and not for the service" in outcome.err
    assert "8999" not in supervisor.path.read_text()


def test_wrong_settings_and_absent_supervisors_install_nothing(
    cli: Cli, supervisor: FakeSupervisor
) -> None:
    assert cli("service", "install", "--port", "x").code == 2
    supervisor.is_absent = True
    outcome = cli("service", "install")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.endswith("error: nobody supervises here\nhint: omlx start\n")
    assert not supervisor.path.exists()


def test_other_systems_have_no_service(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omlx.launch.service.host, "this_supervisor", lambda: None)
    for words in (("install",), ("uninstall",), ("status",)):
        outcome = cli("service", *words)
        assert outcome.code == 1 and "omlx start" in outcome.err


def test_uninstall(cli: Cli, supervisor: FakeSupervisor) -> None:
    outcome = cli("service", "uninstall")
    assert (outcome.code, outcome.err) == (0, "no service is installed\n")
    cli("service", "install")
    supervisor.path.write_text(supervisor.path.read_text() + "Nice=5\n")
    outcome = cli("service", "uninstall")  # nobody can be asked
    assert outcome.code == 1 and "--force" in outcome.err and supervisor.path.exists()
    assert cli("service", "uninstall", "--force").code == 0
    assert not supervisor.path.exists()


@pytest.mark.parametrize(("answer", "is_there"), [(False, True), (True, False)])
def test_uninstall_asks_in_a_terminal(
    cli: Cli, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch,
    answer: bool, is_there: bool,
) -> None:  # fmt: skip
    cli("service", "install")
    supervisor.path.write_text(supervisor.path.read_text() + "Nice=5\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda question, err: answer)
    assert cli("service", "uninstall").code == 0
    assert supervisor.path.exists() is is_there


def test_the_service_of_another_folder_stays(
    cli: Cli, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cli("service", "install")
    monkeypatch.setenv("OMLX_HOME", str(tmp_path / "elsewhere"))
    outcome = cli("service", "uninstall")
    assert outcome.code == 1 and "another folder" in outcome.err and supervisor.path.exists()
    assert cli("service", "status").code == 1
    assert cli("status").out == "no server is running\n"


# ---- the commands that drive it


def test_start_drives_the_service(
    cli: Cli, supervisor: FakeSupervisor, begun: list[bool], starts: object
) -> None:
    cli("service", "install", "--no-start")
    outcome = cli("start")
    assert outcome.code == 0 and outcome.out.startswith(f"omlx serves at {ADDRESS}\n")
    assert begun == [False]
    outcome = cli("start", "--port", "8123")  # a server of its own
    assert outcome.out.startswith("omlx serves at http://127.0.0.1:8123\n")
    assert "a service is installed" in outcome.err and begun == [False]
    assert json.loads(cli("start", "--json").out)["address"] == ADDRESS


def test_stop_goes_through_the_supervisor(
    cli: Cli, supervisor: FakeSupervisor, home: Path, stops: list[str]
) -> None:
    cli("service", "install", "--no-start")
    assert cli("stop").err == "no server is running\n"
    serve_as_service(supervisor, home)
    outcome = cli("stop")
    assert outcome.code == 0 and "until the next login" in outcome.err
    assert supervisor.calls[-1] == "stop" and stops == []


def test_stop_ends_a_service_that_waits_to_be_started_again(
    cli: Cli, supervisor: FakeSupervisor
) -> None:
    cli("service", "install", "--no-start")
    supervisor.now = State(Word.WAITING, None, 3, 1)
    assert cli("stop", "--port", "8123").err == "no server is running on port 8123\n"
    assert cli("stop").code == 0
    assert supervisor.calls[-1] == "stop"


def test_stop_of_another_server_leaves_the_service(
    cli: Cli, supervisor: FakeSupervisor, home: Path, stops: list[str]
) -> None:
    cli("service", "install", "--no-start")
    leave_state(home, "http://127.0.0.1:8001")
    supervisor.now = State(Word.RUNNING, 1)
    assert cli("stop", "--port", "8001").code == 0
    assert stops == ["http://127.0.0.1:8001"] and "stop" not in supervisor.calls


def test_restart_drives_the_service(
    cli: Cli, supervisor: FakeSupervisor, home: Path, begun: list[bool], starts: object,
    stops: list[str],
) -> None:  # fmt: skip
    cli("service", "install", "--no-start")
    assert cli("restart").code == 0 and begun == [True]
    serve_as_service(supervisor, home)
    assert cli("restart").code == 0 and begun == [True, True]
    outcome = cli("restart", "--log-level", "debug")
    assert outcome.code == 2 and "omlx service install" in outcome.err
    assert begun == [True, True] and stops == []


# ---- how it stands


def test_status_of_a_service_that_runs(
    cli: Cli, supervisor: FakeSupervisor, home: Path, live: JsonServer
) -> None:
    cli("service", "install", "--no-start")
    serve_as_service(supervisor, home, live.address)
    outcome = cli("service", "status")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "service: fake unit, runs"
    assert lines[1] == f"  file: {supervisor.path}" and lines[2] == "  starts at login"
    assert f"{live.address}  ready" in lines and "  loaded: a; not loaded: 1" in lines
    whole = json.loads(cli("service", "status", "--json").out)
    assert whole["service"]["state"] == "running"
    assert whole["server"]["address"] == live.address
    assert "service: fake unit, runs" in cli("status").out
    assert json.loads(cli("status", "--json").out)["service"]["pid"] == os.getpid()


def test_status_of_a_service_that_fails(cli: Cli, supervisor: FakeSupervisor, home: Path) -> None:
    cli("service", "install", "--no-start")
    (home / "logs" / "service.log").write_text("error: port 8000 is taken\nhint: no\n")
    supervisor.now = State(Word.FAILED, None, 7, 1)
    for words in (("service", "status"), ("status",)):
        outcome = cli(*words)
        assert outcome.code == 1
        assert "has failed" in outcome.out and "started again 7 times" in outcome.out
        assert "ended with exit code 1" in outcome.out
        assert "last words: port 8000 is taken" in outcome.out
    assert cli("logs").out == "error: port 8000 is taken\nhint: no\n"


def test_status_where_no_supervisor_answers(cli: Cli, supervisor: FakeSupervisor) -> None:
    cli("service", "install", "--no-start")
    supervisor.is_absent = True
    outcome = cli("status")
    assert outcome.out == "no server is running\n" and "not known" in outcome.err
    assert cli("service", "status").code == 1


def test_the_last_error_of_the_log_is_shown(
    cli: Cli, home: Path, live: JsonServer, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "2026-01-01T00:00:00.000 ERROR omlx.server first\n"
        "2026-01-01T00:00:01.000 ERROR omlx.engine [tiny] the \x1b[31mlast\n"
        "2026-01-01T00:00:02.000 INFO omlx.server fine\n"
    )
    leave_state(home, live.address, log=str(log))
    outcome = cli("status")
    assert "last error: 2026-01-01T00:00:01.000 [tiny] the " in outcome.out
    assert "\x1b" not in outcome.out
    assert "last" in json.loads(cli("status", "--json").out)["servers"][0]["last_error"]
