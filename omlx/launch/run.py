"""Starts a client and gives it the terminal until it ends.

Knows nothing about any one client. Its files are in a folder of its own that is removed after it;
folders of launchers that died are removed by the next one.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from omlx.errors import OmlxError
from omlx.launch.plan import Plan

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # the client gets these itself
_DAEMON_S = 3.0
_MAX_PID_CHARS = 2000
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOCAL = "127.0.0.1,localhost,::1"


@contextmanager
def folder_of(runs: Path, name: str) -> Generator[Path]:
    """A folder for a client's files, there while it is entered; only this user can look into it.

    It is the same one each time, unless another launcher has it: its path is in some prompts.
    """
    sweep(runs)
    folder, lock = _own(runs, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(runs: Path) -> None:
    """Remove the folders of launchers whose process is gone."""
    for folder in runs.glob("*-*"):
        with suppress(OSError):
            lock = _claimed(folder) if folder.name.rpartition("-")[2].isdecimal() else None
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _own(runs: Path, name: str) -> tuple[Path, int]:
    """The first folder of a client that no other launcher has, and its lock."""
    number = 0
    while True:
        number += 1
        folder = runs / f"{name}-{number}"
        try:
            runs.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):  # `exist_ok` would raise if it is removed just then
                folder.mkdir(mode=0o700)
            lock = _claimed(folder)
        except OSError as error:
            raise OmlxError(f"{folder} cannot be made: {error.strerror or error}") from None
        if lock is not None:
            return folder, lock


def _claimed(folder: Path) -> int | None:
    """The lock of a folder that nobody has, as a descriptor; OSError if it can't be opened."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:  # another launcher took it for one that was left
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), folder.lstat()):  # else its owner has just removed it
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write a plan's files; they may hold the key."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)


def environment(plan: Plan, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of the client: the user's own, less `unset`, and the plan's over them."""
    own = {key: value for key, value in env.items() if key not in plan.unset}
    if any(own.get(name) or own.get(name.upper()) for name in _PROXIES):
        for name in ("no_proxy", "NO_PROXY"):
            own[name] = ",".join(part for part in (own.get(name), _LOCAL) if part)
    return {**own, **plan.env}


def run(executable: Path, plan: Plan, env: Mapping[str, str], home: Path) -> int:
    """Run a client to its end; its exit code, or 128 + the number of the signal that ended it."""
    before = _daemons(plan, home)
    try:
        return _run([str(executable), *plan.args], env)
    finally:
        for pid in _daemons(plan, home) - before:
            end(pid)


def _run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    child: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that came before there was anyone to give them to

    def pass_on(number: int, _: FrameType | None) -> None:
        if child:
            child[0].send_signal(number)
        else:
            early.append(number)

    def leave(_: int, __: FrameType | None) -> None:
        """The terminal sends it to the client as well, which decides."""

    kept = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    kept |= {number: signal.signal(number, leave) for number in _FROM_TERMINAL}
    try:
        child.append(subprocess.Popen(argv, env=dict(env)))
        while early:
            child[0].send_signal(early.pop(0))
        code = child[0].wait()
    except OSError as error:
        raise OmlxError(f"{argv[0]} can't be started: {error.strerror or error}") from None
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _daemons(plan: Plan, home: Path) -> set[int]:
    """The processes that a plan's pid files name."""
    found: set[int] = set()
    for pattern in plan.pid_files:
        for path in sorted(home.glob(pattern)):
            pid = _read_pid(path)
            if pid is not None and _is_alive(pid):
                found.add(pid)
    return found


def _read_pid(path: Path) -> int | None:
    """The process id in a file: the only number there is, or the one of the key "pid"."""
    try:
        with path.open(errors="replace") as file:
            text = file.read(_MAX_PID_CHARS)
    except OSError:
        return None
    if text.strip().isdecimal():
        return int(text)
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match value:
        case {"pid": int(pid)} if pid > 1:
            return pid
        case _:
            return None


def end(pid: int) -> None:
    """End a process: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + _DAEMON_S
        while _is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not _is_alive(pid):
            return


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
