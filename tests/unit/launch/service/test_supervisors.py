"""systemd and launchd as their programs tell of them, and what those are told to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.errors import ServerError
from omlx.launch.service import launchd, systemd
from omlx.launch.service.host import this_supervisor
from omlx.launch.service.launchd import Launchd
from omlx.launch.service.spec import State, Word
from omlx.launch.service.systemd import Systemd
from omlx.launch.service.tool import Done, run_tool
from tests.fakes.supervisor import FakeTool

ENV = {"HOME": "/home/ann", "USER": "ann"}


def test_the_supervisor_is_that_of_the_system() -> None:
    assert isinstance(this_supervisor(platform="darwin", env=ENV, run=FakeTool()), Launchd)
    assert isinstance(this_supervisor(platform="linux", env=ENV, run=FakeTool()), Systemd)
    assert this_supervisor(platform="win32", env=ENV, run=FakeTool()) is None


# ---- systemd


def show(**fields: str) -> dict[str, str]:
    return {"ActiveState": "inactive", "SubState": "dead", "MainPID": "0", **fields}


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (show(), State(Word.STOPPED)),
        (
            show(ActiveState="active", SubState="running", MainPID="7", UnitFileState="enabled"),
            State(Word.RUNNING, 7, at_login=True),
        ),
        (
            show(
                ActiveState="activating", SubState="auto-restart", NRestarts="3",
                ExecMainCode="1", ExecMainStatus="1",
            ),
            State(Word.WAITING, None, 3, 1),
        ),
        (show(ActiveState="activating", SubState="start"), State(Word.STARTING)),
        (
            show(ActiveState="failed", ExecMainCode="2", ExecMainStatus="9"),
            State(Word.FAILED, None, 0, -9),
        ),
        ({}, State(Word.STOPPED)),
    ],
)  # fmt: skip
def test_what_systemd_says(said: dict[str, str], state: State) -> None:
    assert systemd.state_of(said) == state


def test_the_unit_is_where_systemd_looks_for_it() -> None:
    assert Systemd(ENV, FakeTool()).path == Path("/home/ann/.config/systemd/user/omlx.service")
    moved = Systemd({**ENV, "XDG_CONFIG_HOME": "/c"}, FakeTool())
    assert moved.path == Path("/c/systemd/user/omlx.service")


def test_systemd_is_asked_in_its_order() -> None:
    tool = FakeTool()
    unit = Systemd(ENV, tool)
    unit.load()
    unit.start()
    unit.stop()
    verbs = [call.split()[2] for call in tool.calls]
    assert verbs == ["daemon-reload", "enable", "reset-failed", "start", "stop", "reset-failed"]
    assert all(call.startswith("systemctl --user ") for call in tool.calls)


def test_a_failure_of_systemd_is_told() -> None:
    tool = FakeTool({"systemctl --user start": Done(1, err="Failed to start: no such unit\n")})
    with pytest.raises(ServerError, match=r"start omlx\.service failed: .*no such unit"):
        Systemd(ENV, tool).start()


def test_no_systemd_is_told_with_what_to_do() -> None:
    tool = FakeTool({"systemctl": Done(1, err="Failed to connect to bus: No medium found\n")})
    with pytest.raises(ServerError, match="No medium found") as caught:
        Systemd(ENV, tool).check()
    assert "omlx start" in caught.value.hint
    with pytest.raises(ServerError, match="No medium found"):
        Systemd(ENV, tool).state()


def test_a_service_that_ends_at_logout_is_told_once_it_matters(tmp_path: Path) -> None:
    unit = Systemd(ENV, FakeTool(), lingering=tmp_path)
    assert "loginctl enable-linger ann" in unit.notes()[0]
    (tmp_path / "ann").touch()
    assert unit.notes() == ()


# ---- launchd

RUNNING = (
    "gui/501/local.omlx = {\n\tactive count = 1\n\tstate = running\n\n"
    "\truns = 3\n\tpid = 77\n\tlast exit code = 1\n\tendpoints = {\n\t\tstate = other\n\t}\n}\n"
)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (RUNNING, State(Word.RUNNING, 77, 2, 1, at_login=True)),
        (
            "x = {\n\tstate = spawn scheduled\n\truns = 1\n\tlast exit code = 1\n}",
            State(Word.WAITING, None, 0, 1, at_login=True),
        ),
        (
            "x = {\n\tstate = not running\n\truns = 1\n\tlast exit code = 0\n}",
            State(Word.STOPPED, None, 0, 0, at_login=True),
        ),
        (
            "x = {\n\tstate = not running\n\tlast terminating signal = Killed: 9\n}",
            State(Word.FAILED, None, 0, -9, at_login=True),
        ),
        (
            "x = {\n\tstate = not running\n\tlast exit code = (never exited)\n}",
            State(Word.STOPPED, None, 0, None, at_login=True),
        ),
        ("x = {\n\tstate = xpcproxy\n}", State(Word.STARTING, at_login=True)),
    ],
)
def test_what_launchd_says(said: str, state: State) -> None:
    assert launchd.state_of(said) == state


class FakeLaunchctl:
    """An agent that is loaded or not; `lingers` calls of print until it is gone."""

    def __init__(self, *, is_loaded: bool = False, lingers: int = 0, busy: int = 0) -> None:
        self.is_loaded, self.lingers, self.busy = is_loaded, lingers, busy
        self.verbs: list[str] = []

    def __call__(self, words: object, timeout_s: float) -> Done:
        verb, target = list(words)[1:3]  # type: ignore[call-overload]
        if verb == "print":
            if target == "gui/501":
                return Done(0)
            if not self.is_loaded and self.lingers > 0:
                self.lingers -= 1
                return Done(0, RUNNING)
            return Done(0, RUNNING) if self.is_loaded else Done(113, err="Could not find service")
        self.verbs.append(verb)
        if verb == "bootstrap" and self.busy > 0:
            self.busy -= 1
            return Done(37, err="Bootstrap failed: 37: Operation already in progress")
        self.is_loaded = {"bootstrap": True, "bootout": False}.get(verb, self.is_loaded)
        return Done(0)


def agent(tool: Callable[..., Done], pauses: list[float]) -> Launchd:
    return Launchd(ENV, tool, uid=501, pause=pauses.append)


def test_an_agent_is_loaded_and_ended_with_patience() -> None:
    tool, pauses = FakeLaunchctl(is_loaded=True, lingers=3, busy=2), list[float]()
    agent(tool, pauses).restart()
    assert tool.verbs == ["bootout", "bootstrap", "bootstrap", "bootstrap"]
    assert len(pauses) == 3 + 2 and tool.is_loaded


def test_an_agent_that_is_not_loaded_needs_no_end() -> None:
    tool = FakeLaunchctl()
    agent(tool, []).stop()
    agent(tool, []).load()
    assert tool.verbs == ["enable"]
    assert agent(tool, []).state().word is Word.STOPPED


def test_a_refusal_of_launchd_is_told() -> None:
    tool = FakeTool({
        "launchctl print gui/501/": Done(113),
        "launchctl bootstrap": Done(125, err="Bootstrap failed: 125: Domain does not support it"),
    })  # fmt: skip
    with pytest.raises(ServerError, match="Domain does not support it"):
        agent(tool, []).start()
    busy, pauses = FakeLaunchctl(busy=1000), list[float]()
    with pytest.raises(ServerError, match="already in progress"):
        agent(busy, pauses).start()
    assert sum(pauses) < 60


def test_the_files_of_homebrew_are_known() -> None:
    names = [
        path.name for path in (*agent(FakeTool(), []).others, *Systemd(ENV, FakeTool()).others)
    ]
    assert "homebrew.mxcl.omlx.plist" in names and "homebrew.omlx.service" in names


# ---- programs


def test_programs_end_in_time_or_are_missing() -> None:
    assert run_tool(["true"], 5).code == 0
    assert run_tool(["sh", "-c", "echo no >&2; exit 3"], 5) == Done(3, "", "no\n")
    assert run_tool(["sleep", "5"], 0.05).code == 124
    missing = run_tool(["/no/such/program"], 5)
    assert missing.code == 127 and "/no/such/program" in missing.said
