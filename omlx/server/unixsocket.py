"""A Unix socket that only the user of this process can connect to, for as long as a server runs.

Knows nothing about HTTP.
"""

import errno
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from omlx.errors import ServerError

_BACKLOG = 512
_ONLY_THIS_USER = 0o177
_PROBE_S = 1.0
_HINT = "choose another path for server.unix_socket"


def unix_address(path: Path) -> str:
    """The address of a socket, as state files and commands have it."""
    return f"unix:{path}"


@contextmanager
def bound_unix(path: Path) -> Generator[socket.socket]:
    """A listening socket at a path, removed at the end; ServerError if that can't be.

    A socket that a server left behind is replaced; one where a server answers, and anything
    else, is not.
    """
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listener, path)
        own = _identity(path)
        try:
            yield listener
        finally:
            if _identity(path) == own:  # else another server has taken the path since
                with suppress(FileNotFoundError):
                    path.unlink()
    finally:
        listener.close()


def _bind(listener: socket.socket, path: Path) -> None:
    before = os.umask(_ONLY_THIS_USER)
    try:
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(f"Can't listen on the socket {path}: {reason}", hint=_HINT) from error
    finally:
        os.umask(before)


def _make_room(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(f"Can't listen on the socket {path}: {reason}", hint=_HINT) from error
    if not is_socket:
        raise ServerError(f"{path} is there already, and is no socket", hint=_HINT)
    if _is_answered(path):
        raise ServerError(f"Another server listens on the socket {path}", hint=_HINT)
    with suppress(FileNotFoundError):
        path.unlink()


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno != errno.ECONNREFUSED
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
