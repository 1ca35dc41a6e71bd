"""Files of servers in the background: the lock of a start, state files, the log.

Knows nothing about processes.
"""

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from omlx.client import read_state
from omlx.errors import ServerError
from omlx.launch.system import Machine

_POLL_S = 0.1
_HINT = "omlx start needs a folder that it can write to; OMLX_HOME names another one"


@contextmanager
def locked(
    state: Path, machine: Machine, deadline: float, on_progress: Callable[[str], None]
) -> Generator[None]:
    """Hold the right to start the server of a state file; ServerError if that can't be had.

    It is written to as well, so that a disk that is full is known before anything is started.
    """
    path = state.with_name(state.stem.replace("server-", "start-", 1) + ".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(path.parent, error) from None
    try:
        _take(handle, machine, deadline, on_progress)
        try:
            os.ftruncate(handle, 0)
            os.write(handle, b"%d\n" % os.getpid())
            machine.sync(handle)
        except OSError as error:
            raise _unusable(path.parent, error) from None
        yield
    finally:
        os.close(handle)


def _unusable(folder: Path, error: OSError) -> ServerError:
    reason = error.strerror or str(error)
    return ServerError(f"the state folder {folder} cannot be written: {reason}", hint=_HINT)


def _take(
    handle: int, machine: Machine, deadline: float, on_progress: Callable[[str], None]
) -> None:
    is_said = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        if machine.now() >= deadline:
            raise ServerError("another omlx start of the same server does not end")
        if not is_said:
            on_progress("waits for another omlx start of the same server")
            is_said = True
        machine.pause(_POLL_S)


def open_log(path: Path) -> int:
    """A log to append to; ServerError names it if it can't be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(
            f"the log {path} cannot be written: {reason}", hint="--log-file names another one"
        ) from None


def is_state_of(path: Path, pid: int) -> bool:
    """Whether a state file is that of a process."""
    state = read_state(path)
    return state is not None and state.pid == pid


def remove_state(path: Path) -> bool:
    """Remove a state file; whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
