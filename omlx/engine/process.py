"""An engine in a process of its own, and that process's main function.

Knows nothing about text or HTTP. The parent never imports mlx; the child does so on its engine
thread only.
"""

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict

from omlx import log
from omlx.engine.blas import preload_library, with_preload
from omlx.engine.config import EngineConfig
from omlx.engine.frames import (
    Frame,
    events_frame,
    events_from,
    receive,
    request_frame,
    request_from,
    send,
    snapshot_from,
)
from omlx.engine.request import (
    EngineRequest,
    EngineSnapshot,
    EngineState,
    Event,
    Failed,
    FailureCode,
    Finished,
    Listener,
)

_log = logging.getLogger("omlx.engine.process")
_ORPHAN_FLUSH_S = 2.0  # what an engine may still write once its server is gone
_KILL_GRACE_S = 3.0  # beyond the flush, for ending threads and the interpreter


class EngineProcess:
    """The parent's side: implements Engine over a socket pair."""

    def __init__(self, config: EngineConfig, *, blas: str = "auto") -> None:
        self._config = config
        self._blas = blas
        self._state = EngineState.STARTING
        self._error: str | None = None
        self._snapshot: EngineSnapshot | None = None
        self._outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._live: set[str] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._listener: Listener | None = None

    @property
    def model_id(self) -> str:
        """The id of the model that it serves."""
        return self._config.model_id

    @property
    def pid(self) -> int | None:
        """The child's process id, once started."""
        return self._process.pid if self._process else None

    def start(self, listener: Listener) -> None:
        """Start the process; it loads the model at once. EngineError."""
        assert self._process is None, "an engine starts once"
        env = with_preload(os.environ, preload_library(self._blas))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omlx.engine.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,  # a terminal's Ctrl-C is for the server, which drains
            )
        self._listener = listener
        self._outbox.put({"kind": "start", "config": asdict(self._config)})
        name = f"engine {self.model_id}"
        threading.Thread(target=self._write, args=(ours,), name=name, daemon=True).start()
        self._reader = threading.Thread(target=self._read, args=(ours,), name=name, daemon=True)
        self._reader.start()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request."""
        with self._lock:
            is_alive = self._state not in (EngineState.FAILED, EngineState.STOPPED)
            if is_alive:
                self._live.add(request.id)
        if is_alive:
            self._outbox.put(request_frame(request))
        else:
            self._deliver([Failed(request.id, FailureCode.ENGINE, self._why())])

    def abort(self, request_id: str) -> None:
        """End a request within one step."""
        self._outbox.put({"kind": "abort", "request_id": request_id})

    def state(self) -> EngineState:
        """Where the engine is in its life."""
        return self._state

    def error(self) -> str | None:
        """Why the engine failed."""
        return self._error

    def snapshot(self) -> EngineSnapshot | None:
        """The latest figures."""
        return self._snapshot

    def stop(self, timeout_s: float) -> int | None:
        """Have it flush and end; kill it when it takes longer than the limit and a little."""
        process = self._process
        if process is None:
            return None
        self._outbox.put({"kind": "stop", "timeout_s": timeout_s})
        try:
            code = process.wait(timeout_s + _KILL_GRACE_S)
        except subprocess.TimeoutExpired:
            _log.warning("engine %s did not end in time and is killed", self.model_id)
            process.kill()
            code = process.wait()
        self._outbox.put(None)
        if self._reader is not None:
            self._reader.join(1.0)
        return code

    def _write(self, sock: socket.socket) -> None:
        while (frame := self._outbox.get()) is not None:
            try:
                send(sock, frame)
            except OSError:
                return  # the reader sees the end as well and reports it

    def _read(self, sock: socket.socket) -> None:
        with sock:
            while (frame := receive(sock)) is not None:
                self._take(frame)
            self._ended()

    def _take(self, frame: Frame) -> None:
        kind = frame["kind"]
        if kind == "events":
            events = events_from(frame)
            with self._lock:
                for event in events:
                    if isinstance(event, Finished | Failed):
                        self._live.discard(event.request_id)
            self._deliver(events)
        elif kind == "snapshot":
            self._snapshot = snapshot_from(frame["snapshot"])
        else:
            assert kind == "state", kind
            self._state = EngineState(frame["state"])
            self._error = frame["error"]

    def _ended(self) -> None:
        """The child has closed its side: whatever still ran has failed."""
        assert self._process is not None
        code = self._process.wait()
        with self._lock:
            if code != 0 or self._state is not EngineState.STOPPED:
                self._error = self._error or f"the engine process ended with exit code {code}"
                self._state = EngineState.FAILED
                _log.error("engine %s: %s", self.model_id, self._error)
            lost, self._live = self._live, set()
        if lost:
            self._deliver([Failed(i, FailureCode.ENGINE, self._why()) for i in sorted(lost)])

    def _why(self) -> str:
        return self._error or "the engine has ended"

    def _deliver(self, events: list[Event]) -> None:
        assert self._listener is not None
        self._listener(events)


def run_child(sock: socket.socket) -> int:
    """The child's main thread: frames in, until the server says stop or is gone."""
    first = receive(sock)
    if first is None:
        return 1
    config = EngineConfig(**first["config"])
    log.setup(config.log_level, tag=config.model_id)

    from omlx.engine.engine import LocalEngine  # mlx belongs to this process only

    lock = threading.Lock()  # a submit that fails at once answers on this thread

    def tell(frame: Frame) -> None:
        try:
            with lock:
                send(sock, frame)
        except OSError:
            _log.debug("the server is gone")

    def changed() -> None:
        tell({"kind": "state", "state": engine.state().value, "error": engine.error()})
        if engine.snapshot() is not None:
            tell({"kind": "snapshot", "snapshot": engine.snapshot()})

    engine = LocalEngine(config, on_change=changed)
    engine.start(lambda events: tell(events_frame(events)))
    timeout_s = _ORPHAN_FLUSH_S
    while (frame := receive(sock)) is not None:
        if frame["kind"] == "submit":
            engine.submit(request_from(frame))
        elif frame["kind"] == "abort":
            engine.abort(frame["request_id"])
        else:
            assert frame["kind"] == "stop", frame["kind"]
            timeout_s = frame["timeout_s"]
            break
    return engine.stop(timeout_s) or 0


def main() -> int:
    """Entry point of `python -m omlx.engine.process FD`."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)  # the server says when to end, or its socket closes
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        return run_child(sock)


if __name__ == "__main__":
    sys.exit(main())
