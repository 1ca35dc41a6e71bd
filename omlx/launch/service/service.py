"""The service of this user: install and remove it, start and stop it, and say how it stands.

Knows nothing about terminals, or which supervisor it is.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omlx import __version__
from omlx.client import RunningServer
from omlx.errors import ServerError
from omlx.launch.background import Progress, clean, find
from omlx.launch.endings import died, last_line, no_answer, warnings
from omlx.launch.service.seal import is_sealed
from omlx.launch.service.spec import Spec, State, Supervisor, Word, Written, output_path
from omlx.launch.system import Machine, System
from omlx.settings import places

START_S = 120.0
_POLL_S = 0.25
_PROGRESS_S = 5.0
_MODE = 0o644  # systemd and launchd refuse files that others can write
_OVER = (Word.FAILED, Word.WAITING, Word.STOPPED)


@dataclass(frozen=True, slots=True)
class Installed:
    """A service that there is a file of; `is_edited` where it is not as it was written here."""

    supervisor: Supervisor
    written: Written
    is_edited: bool

    @property
    def path(self) -> Path:
        """Its file."""
        return self.supervisor.path

    def state(self) -> State:
        """How it stands; ServerError where its supervisor does not say."""
        return self.supervisor.state()

    def output(self, home: Path) -> Path:
        """Where it writes until it is ready."""
        return self.written.output or output_path(home)


def any_installed(supervisor: Supervisor) -> Installed | None:
    """The service of this user, for whichever folder; ServerError where its file can't be read."""
    try:
        data = supervisor.path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(f"{supervisor.path} cannot be read: {reason}") from None
    return Installed(supervisor, supervisor.read(data), not is_sealed(data))


def installed(home: Path, supervisor: Supervisor | None) -> Installed | None:
    """The service that runs in this folder of the user's; None where it runs in another one."""
    found = None if supervisor is None else any_installed(supervisor)
    if found is None or (found.written.home or home) != home:
        return None
    return found


def oddities(supervisor: Supervisor, home: Path, program: str) -> list[str]:
    """What is wrong about the services there are: several, or one of another installation."""
    found = [
        f"another service of omlx is there, and has the same port unless told otherwise: {path}"
        for path in supervisor.others
        if path.exists()
    ]
    service = any_installed(supervisor)
    if service is None:
        return found
    written = service.written
    if written.home not in (None, home):
        found.append(f"the service {service.path} runs in {written.home}, and not in {home}")
    if written.program and not Path(written.program).exists():
        found.append(f"the service starts {written.program}, which is gone")
    elif written.program and not _is_same(written.program, program):
        found.append(
            f"the service starts another installation: {written.program}; this is {program}"
        )
    return found


def _is_same(one: str, other: str) -> bool:
    """Whether two interpreters are of one installation; links lead out of an environment."""
    return Path(one).parent == Path(other).parent


def install(spec: Spec, supervisor: Supervisor, *, force: bool = False) -> bool:
    """Write the file of a service and have it started at login; whether it was changed.

    One that was edited, or is for another folder, is replaced only if `force`. Where its
    supervisor refuses it, what was there before is put back. ServerError.
    """
    text = supervisor.text(spec)
    supervisor.check()
    path, old = supervisor.path, any_installed(supervisor)
    before = path.read_bytes() if old is not None else None
    if old is not None and before != text and not force:
        _check_ours(old, spec.home)
    _prepare(spec.home, spec.output)
    if old is not None:
        keep(old, spec.home)
    _write(path, text)
    try:
        supervisor.load()
    except ServerError:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            _write(path, before)
        raise
    return before != text


def _check_ours(old: Installed, home: Path) -> None:
    other = old.written.home
    if other is not None and other != home:
        raise ServerError(
            f"{old.path} is the service of another folder, {other}",
            hint="--force replaces it; a user has one service only",
        )
    if old.is_edited:
        raise edited(old)


def edited(service: Installed) -> ServerError:
    """The error where somebody would lose what they wrote."""
    return ServerError(
        f"{service.path} was edited since omlx wrote it",
        hint="--force goes on, and keeps what it holds now in OMLX_HOME in state/service.edited",
    )


def uninstall(service: Installed, home: Path, *, force: bool = False) -> None:
    """End a service and remove its file. ServerError, also where it was edited, unless `force`."""
    if service.is_edited and not force:
        raise edited(service)
    keep(service, home)
    supervisor, path = service.supervisor, service.path
    has_supervisor = _has_supervisor(supervisor)
    if has_supervisor:  # where there is none, nothing runs under it either
        supervisor.unload()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ServerError(f"{path} cannot be removed: {error.strerror or error}") from None
    if has_supervisor:
        supervisor.forget()


def keep(service: Installed, home: Path) -> None:
    """Put a copy of a file that was edited where the user finds it; ServerError."""
    if not service.is_edited:
        return
    folder = places.state_dir(home)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "service.edited").write_bytes(service.path.read_bytes())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(f"{service.path} cannot be kept in {folder}: {reason}") from None


def _has_supervisor(supervisor: Supervisor) -> bool:
    try:
        supervisor.check()
    except ServerError:
        return False
    return True


def _prepare(home: Path, output: Path) -> None:
    """Make the folders that the service is started in; ServerError."""
    for folder in (home, output.parent):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ServerError(f"{folder} cannot be made: {error.strerror or error}") from None


def _write(path: Path, data: bytes) -> None:
    """Put a file in the place of what was there, at once; ServerError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".omlx-", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), _MODE)
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ServerError(f"{path} cannot be written: {error.strerror or error}") from None


def start(
    service: Installed,
    home: Path,
    *,
    again: bool = False,
    on_progress: Progress = lambda _: None,
    timeout_s: float = START_S,
    machine: Machine | None = None,
) -> tuple[RunningServer, bool]:
    """Start a service (or end and start it, `again`) and wait until it answers.

    The server, and whether it is a new one; one of another version is replaced. ServerError with
    its last words if it does not come; it is stopped then, and tried again at the next login.
    """
    machine = machine or System()
    states, supervisor = places.state_dir(home), service.supervisor
    supervisor.check()
    clean(states, machine=machine)
    wait = _Wait(service, states, service.output(home), machine)
    server = None if again else wait.answering(supervisor.state())
    if server is not None and server.version == __version__:
        return server, False
    again = again or server is not None  # an older version, which an update left running
    try:
        return wait.begun(
            supervisor.restart if again else supervisor.start, timeout_s, on_progress
        ), True
    except BaseException:
        supervisor.stop()
        raise


@dataclass(frozen=True, slots=True)
class _Wait:
    """Waits for a service until its server answers."""

    service: Installed
    states: Path
    output: Path
    machine: Machine

    def begun(
        self, act: Callable[[], None], timeout_s: float, on_progress: Progress
    ) -> RunningServer:
        """The server, once it answers after `act`; ServerError if it ends before or is slow."""
        offset = self._size()
        began = said = self.machine.now()
        act()
        while True:
            state = self.service.state()
            if (server := self.answering(state)) is not None:
                for line in warnings(self.output, offset):
                    on_progress(line)
                return server
            now = self.machine.now()
            if state.word in _OVER or state.num_restarts > 0:
                raise died(state.exit_code or 0, self.output, offset)
            if now - began >= timeout_s:
                raise no_answer(state.pid or 0, now - began, self.output, offset)
            if now - said >= _PROGRESS_S:
                said = now
                line = last_line(self.output, offset)
                on_progress(f"{now - began:.0f} s: {line or 'imports its parts'}")
            self.machine.pause(_POLL_S)

    def answering(self, state: State) -> RunningServer | None:
        """The server of a service in that state, if it answers."""
        if state.pid is None:
            return None
        for server in find(self.states, machine=self.machine).servers:
            if server.pid == state.pid and self._is_well(server):
                return server
        return None

    def _is_well(self, server: RunningServer) -> bool:
        try:
            return self.machine.health(server).get("status") != "stopping"
        except ServerError:
            return False

    def _size(self) -> int:
        try:
            return self.output.stat().st_size
        except OSError:
            return 0


def is_of(service: Installed | None, server: RunningServer) -> bool:
    """Whether a server that runs is the one of a service."""
    if service is None:
        return False
    try:
        return service.state().pid == server.pid
    except ServerError:
        return False


def runs(service: Installed) -> bool:
    """Whether a service is anything but stopped, be it that it waits to be started again."""
    try:
        return service.state().word is not Word.STOPPED
    except ServerError:
        return False
