"""Servers in the background: start one, find those that live, stop one.

Knows nothing about terminals, or about what servers do.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx import __version__
from omlx.client import RunningServer, read_states, state_name
from omlx.errors import ServerError
from omlx.launch.endings import died, end_family, last_line, no_answer, warnings
from omlx.launch.files import is_state_of, locked, open_log, remove_state
from omlx.launch.system import Child, Machine, Member, System, is_same_time
from omlx.settings import places
from omlx.settings.build import Resolved

START_S = 120.0
_STOP_S = 15.0
_AFTER_DRAIN_S = 5.0
_KILL_S = 5.0
_ENGINES_S = 4.0  # engines that lost their server write for two seconds and end
_POLL_S = 0.1
_PROGRESS_S = 5.0
_INSTALLED = ("site-packages", "dist-packages")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Stale:
    """A state file that stands for no server, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The servers that live, by port, and the state files that stand for none."""

    servers: tuple[RunningServer, ...]
    stale: tuple[Stale, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers; `is_new` unless it ran already."""

    server: RunningServer
    is_new: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a server ended: `num_killed` processes, of it and its engines, had to be killed."""

    server: RunningServer
    num_killed: int
    seconds: float


def _quiet(_: str) -> None:
    """Where nobody wants to know."""


def find(state_dir: Path, *, machine: Machine | None = None) -> Found:
    """The servers of this user's folder that live; changes nothing and signals nobody."""
    machine = machine or System()
    servers: list[RunningServer] = []
    stale: list[Stale] = []
    for path, server in read_states(state_dir):
        reason = "it is no state file of a server" if server is None else _fault(server, machine)
        if server is not None and not reason:
            servers.append(server)
        else:
            stale.append(Stale(path, reason))
    return Found(tuple(servers), tuple(stale))


def clean(state_dir: Path, *, machine: Machine | None = None) -> tuple[Stale, ...]:
    """Remove state files that stand for no server; those that were removed. Signals nobody."""
    found = find(state_dir, machine=machine)
    return tuple(one for one in found.stale if remove_state(one.path))


def _fault(server: RunningServer, machine: Machine) -> str:
    """Why no server is what a state file says; empty if one is."""
    began = machine.began(server.pid)
    if began is None:
        return f"process {server.pid} has ended"
    if _is_process_of(server, began):
        return ""
    # A clock that was set moves the start times of all processes.
    if machine.is_omlx(server.pid) and _answers(server, machine):
        return ""
    return f"process {server.pid} is another program now"


def _is_process_of(server: RunningServer, began: float) -> bool:
    """Whether a process that began then is the one that wrote the state file."""
    if server.process_started is not None:
        return is_same_time(began, server.process_started)
    # An older version's file: who has the id now had it when the file was written, or began later.
    return server.started is None or began <= server.started + 1


def _answers(server: RunningServer, machine: Machine) -> bool:
    try:
        return bool(machine.health(server))
    except ServerError:
        return False


def expected_state(resolved: Resolved) -> Path:
    """The state file of a server with these settings; of no use where its port is 0."""
    server = resolved.settings.server
    is_unix = server.unix_socket is not None
    address = f"unix:{server.unix_socket}" if is_unix else f"http://{server.host}:{server.port}"
    return resolved.state_dir / state_name(address)


def log_path(resolved: Resolved) -> Path:
    """Where the log of a server with these settings goes that runs in the background."""
    key = expected_state(resolved).stem.removeprefix("server-")
    return resolved.settings.log.file or places.log_dir(resolved.home) / f"serve-{key}.log"


def start(
    arguments: Sequence[str],
    *,
    resolved: Resolved,
    on_progress: Progress = _quiet,
    timeout_s: float = START_S,
    env: Mapping[str, str] | None = None,
    machine: Machine | None = None,
) -> Started:
    """Start `omlx serve` with these options in the background, and wait until it answers.

    `resolved` is what the options give (its `cwd` is where the server runs), `env` (os.environ by
    default) its environment; secrets belong there. One that runs on that port already is returned
    as it is. ServerError if none can be had; nothing that was started is left then.
    """
    machine = machine or System()
    state = expected_state(resolved)
    deadline = machine.now() + timeout_s
    with locked(state, machine, deadline, on_progress):
        running = _running(state, machine, deadline, on_progress)
        if running is not None:
            return Started(running, is_new=False)
        log = log_path(resolved)
        output = open_log(log)
        try:
            start_of_log = os.fstat(output).st_size
            child = machine.spawn(
                [sys.executable, "-m", "omlx", "serve", *arguments],
                cwd=resolved.cwd,
                env=start_environment(os.environ if env is None else env, resolved, log),
                output=output,
            )
        except OSError as error:
            raise ServerError(f"omlx serve cannot be started: {error}") from None
        finally:
            os.close(output)
        on_progress(f"starts as process {child.pid}; log: {log}")
        wait = _Wait(child, resolved, log, start_of_log, machine)
        try:
            return Started(wait.until(deadline, on_progress), is_new=True)
        except BaseException:
            end_family(machine, machine.family(child.pid))
            child.poll()
            raise


def start_environment(env: Mapping[str, str], resolved: Resolved, log: Path) -> Mapping[str, str]:
    """The environment of a server that is started: `env`, and what says where its things are."""
    found = {
        **env,
        "OMLX_HOME": str(resolved.home),
        "OMLX_LOG_FILE": str(log),
        "PYTHONSAFEPATH": "1",  # the folder it runs in is somebody's project: never import from it
    }
    root = Path(__file__).resolve().parents[2]
    if root.name not in _INSTALLED:  # a checkout that this process may have found by its folder
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    return found


def _running(
    state: Path, machine: Machine, deadline: float, on_progress: Progress
) -> RunningServer | None:
    """The server that has the port already; ServerError if it is of no use."""
    is_said = False
    while True:
        found = [one for one in find(state.parent, machine=machine).servers if _at(one, state)]
        if not found:
            return None
        server = found[0]
        hint = f"omlx stop{_flag(server)} ends it"
        if server.version != __version__:
            raise ServerError(
                f"omlx {server.version} runs at {server.address} already, as process {server.pid}; "
                f"this is {__version__}",
                hint=f"omlx restart{_flag(server)} replaces it",
            )
        word = _health(server, machine)
        if word and word != "stopping":
            return server
        if machine.now() >= deadline:
            what = "is stopping" if word else "does not answer"
            raise ServerError(f"process {server.pid} at {server.address} {what}", hint=hint)
        if not is_said:
            what = "to end" if word else "to answer"
            on_progress(f"waits for process {server.pid} at {server.address} {what}")
            is_said = True
        machine.pause(_POLL_S)


def _health(server: RunningServer, machine: Machine) -> str:
    """The word of a server that answers; empty if it does not."""
    try:
        return str(machine.health(server).get("status") or "unknown")
    except ServerError:
        return ""


def _at(server: RunningServer, state: Path) -> bool:
    return server.state_path == state


def _flag(server: RunningServer) -> str:
    return "" if server.port is None else f" --port {server.port}"


@dataclass(frozen=True, slots=True)
class _Wait:
    """Waits for a process that was started until it answers."""

    child: Child
    resolved: Resolved
    log: Path
    start_of_log: int
    machine: Machine

    def until(self, deadline: float, on_progress: Progress) -> RunningServer:
        """The server, once it answers; ServerError if it ends before, or is too slow."""
        began = said = self.machine.now()
        while True:
            code = self.child.poll()
            if code is not None:
                raise died(code, self.log, self.start_of_log)
            server = self._state()
            if server is not None and _answers(server, self.machine):
                for line in warnings(self.log, self.start_of_log):
                    on_progress(line)
                return server
            now = self.machine.now()
            if now >= deadline:
                raise no_answer(self.child.pid, now - began, self.log, self.start_of_log)
            if now - said >= _PROGRESS_S:
                said = now
                line = last_line(self.log, self.start_of_log)
                on_progress(f"{now - began:.0f} s: {line or 'imports its parts'}")
            self.machine.pause(_POLL_S)

    def _state(self) -> RunningServer | None:
        states = read_states(self.resolved.state_dir)
        found = [server for _, server in states if server and server.pid == self.child.pid]
        return found[0] if found else None


def stop(
    server: RunningServer,
    *,
    timeout_s: float | None = None,
    on_progress: Progress = _quiet,
    machine: Machine | None = None,
) -> Stopped:
    """Have a server finish its requests, store what it holds and end; wait until it is gone.

    What still runs after `timeout_s` (15 s, or its own drain limit and 5 s) is killed, engines as
    well. ServerError if it can't be ended. Signals nobody if the process is another one by now.
    """
    machine = machine or System()
    began = machine.now()
    if timeout_s is None:
        timeout_s = max(_STOP_S, (server.drain_s or 0) + _AFTER_DRAIN_S)
    family = () if _fault(server, machine) else machine.family(server.pid)
    num_killed = 0
    if family and machine.signal(family[0], signal.SIGTERM):
        num_killed = _see_off(server, family, began + timeout_s, on_progress, machine)
    if server.state_path is not None and is_state_of(server.state_path, server.pid):
        remove_state(server.state_path)
    return Stopped(server, num_killed, machine.now() - began)


def _see_off(
    server: RunningServer,
    family: tuple[Member, ...],
    deadline: float,
    on_progress: Progress,
    machine: Machine,
) -> int:
    """Wait for a process and those below it, and kill what stays; how many that were."""
    began = said = machine.now()
    while _lives(family[0], machine) and machine.now() < deadline:
        family = (family[0], *{*family[1:], *machine.family(server.pid)[1:]})
        if machine.now() - said >= _PROGRESS_S:
            said = machine.now()
            on_progress(f"{said - began:.0f} s: process {server.pid} is stopping")
        machine.pause(_POLL_S)
    limit = machine.now() + _ENGINES_S
    while not _lives(family[0], machine) and machine.now() < limit:
        if not any(_lives(one, machine) for one in family[1:]):
            return 0
        machine.pause(_POLL_S)
    killed = end_family(machine, family, signal.SIGKILL)
    limit = machine.now() + _KILL_S
    while any(_lives(one, machine) for one in family):
        if machine.now() >= limit:
            raise ServerError(
                f"process {server.pid} cannot be ended",
                hint="the system holds it, as for a disk that does not answer",
            )
        machine.pause(_POLL_S)
    return killed


def _lives(member: Member, machine: Machine) -> bool:
    began = machine.began(member.pid)
    return began is not None and is_same_time(began, member.began)
