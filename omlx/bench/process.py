"""Programs that a bench starts and always ends: with those below them, on errors and on Ctrl-C.

Knows nothing about what they serve.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from omlx.bench.failure import BenchError

_POLL_S = 0.02
_KILL_S = 10.0
_ORPHANS_S = 5.0
_LOG_LINES = 12
_LOG_BYTES = 65_536


class Program:
    """A process in a session of its own, so that a terminal's Ctrl-C reaches only the bench.

    Use it as a context manager: whatever happens, nothing of it is left at the end. What it writes
    goes to `log`, a temporary file by default. One thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._env = None if env is None else dict(env)
        self._cwd = cwd
        self._log = log
        self._own_log: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process that runs, or has run."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process itself lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; BenchError if that can't be done."""
        assert not self.is_running, f"{self.name} runs already"
        log = self._log or self._make_log()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            raise BenchError(f"{self.name} cannot be started: {error}") from None
        self._family = {}

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_s: float) -> float:
        """Wait until it is ready; the seconds that took. BenchError if it ends or is too slow."""
        began = time.monotonic()
        while not is_ready():
            if not self.is_running:
                raise BenchError(
                    f"{self.name} ended before it was ready (exit code {self._code()})\n"
                    + self.log_tail()
                )
            if time.monotonic() - began > timeout_s:
                raise BenchError(
                    f"{self.name} was not ready after {timeout_s:.0f} s\n" + self.log_tail()
                )
            time.sleep(_POLL_S)
        return time.monotonic() - began

    def stop(self, *, timeout_s: float = 30.0) -> bool:
        """End it with SIGTERM, and kill what is left after `timeout_s`; whether it ended itself.

        Those below it that outlive it get a SIGTERM of their own, and some seconds.
        """
        self._see()
        if self.is_running and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        is_clean = self._wait_gone(timeout_s, lambda: self.is_running)
        if is_clean:
            for process in self._family.values():
                with suppress(psutil.Error):
                    process.terminate()
        if not is_clean or not self._wait_gone(_ORPHANS_S, self._any_lives):
            self.kill()
        return is_clean

    def kill(self) -> None:
        """End it and all below it with SIGKILL, at once."""
        self._see()
        for process in [*self._family.values()]:
            with suppress(psutil.Error):
                process.kill()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
        if not self._wait_gone(_KILL_S, self._any_lives):
            raise BenchError(
                f"{self.name} (process {self.pid}) cannot be ended",
                hint="the system holds it, as for a disk that does not answer",
            )

    def close(self) -> None:
        """Stop it if it runs, and forget its log (idempotent)."""
        try:
            if self._process is not None:
                self.stop()
        except BaseException:
            self.kill()
            raise
        finally:
            if self._own_log is not None:
                self._own_log.unlink(missing_ok=True)
                self._own_log = None

    def memory_bytes(self) -> int:
        """Resident memory of the process and of all below it; shared pages count in each."""
        self._see()
        total = 0
        for process in self._family.values():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        log = self._log or self._own_log
        if log is None or not log.is_file():
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def log_text(self) -> str:
        """All that it wrote."""
        log = self._log or self._own_log
        return log.read_text(errors="replace") if log is not None and log.is_file() else ""

    def _make_log(self) -> Path:
        if self._own_log is None:
            handle, path = tempfile.mkstemp(prefix="omlx-bench-", suffix=".log")
            os.close(handle)
            self._own_log = Path(path)
        return self._own_log

    def _code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def _see(self) -> None:
        """Note the processes below it: those of one that ended can't be found any more."""
        if not self.is_running:
            return
        with suppress(psutil.Error):
            first = psutil.Process(self.pid)
            for process in (first, *first.children(recursive=True)):
                self._family[process.pid] = process

    def _any_lives(self) -> bool:
        return self.is_running or any(map(_lives, self._family.values()))

    def _wait_gone(self, timeout_s: float, is_there: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + timeout_s
        while is_there():
            if time.monotonic() > deadline:
                return False
            self._see()
            time.sleep(_POLL_S)
        return True


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def python_path(env: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child finds the omlx that this process runs, wherever it starts."""
    root = Path(__file__).resolve().parents[2]
    found = {**env, "PYTHONSAFEPATH": "1"}
    if root.name not in ("site-packages", "dist-packages"):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    return found
