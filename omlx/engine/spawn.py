"""Starts engine processes, and keeps one spare that has done its imports.

Knows nothing about models, or about what is said over the sockets.
"""

import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

import psutil

from omlx.engine.blas import preload_library, with_preload
from omlx.engine.child import Vitals
from omlx.engine.heap import with_one_heap


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that waits for its first frame, and our end of its socket."""

    process: subprocess.Popen[bytes]
    sock: socket.socket


def spawn(blas: str) -> Spawned:
    """Start a process, with the BLAS of that setting; EngineError, OSError."""
    env = with_one_heap(with_preload(os.environ, preload_library(blas)))
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "omlx.engine.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,  # a terminal's Ctrl-C is for the server, which drains
            )
        except BaseException:
            ours.close()
            raise
    return Spawned(process, ours)


def vitals(pid: int | None) -> Vitals:
    """What the system says of a process; nothing of one that is not there."""
    if pid is None:
        return Vitals()
    try:
        process = psutil.Process(pid)
        times, status = process.cpu_times(), process.status()
    except psutil.Error:
        return Vitals()
    return Vitals(times.user + times.system, status == psutil.STATUS_STOPPED)


class Spawner:
    """Gives processes out; any thread may call it. A spare whose server ends, ends by itself."""

    def __init__(self, blas: str) -> None:
        self._blas = blas
        self._lock = threading.Lock()
        self._spare: Spawned | None = None
        self._is_closed = False

    def take(self) -> Spawned:
        """The spare if it lives, else a new process (mutates); EngineError, OSError."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            if spare.process.poll() is None:
                return spare
            spare.sock.close()
        return spawn(self._blas)

    def has_spare(self) -> bool:
        """Whether a spare lives, or none is wanted any more."""
        with self._lock:
            return self._is_closed or self._lives()

    def _lives(self) -> bool:
        return self._spare is not None and self._spare.process.poll() is None

    def refill(self) -> None:
        """Start a spare if there is none (mutates)."""
        with self._lock:
            if self._is_closed or self._lives():
                return
            if self._spare is not None:
                self._spare.sock.close()
            self._spare = spawn(self._blas)

    def close(self) -> None:
        """End the spare and keep no other (mutates)."""
        with self._lock:
            spare, self._spare, self._is_closed = self._spare, None, True
        if spare is not None:
            spare.sock.close()
            spare.process.kill()
            spare.process.wait()
