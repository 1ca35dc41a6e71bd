"""An engine in a process of its own, and that process's main function.

Knows nothing about text or HTTP. The parent never imports mlx; the child does so on its engine
thread only.
"""

import importlib
import logging
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path

from omlx import log
from omlx.engine.child import Beat, Ending, Vitals, Watcher
from omlx.engine.config import EngineConfig
from omlx.engine.frames import (
    Frame,
    events_frame,
    events_from,
    limit_frame,
    limit_from,
    receive,
    received,
    request_frame,
    request_from,
    send,
    snapshot_from,
)
from omlx.engine.pulse import Pulse
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
from omlx.engine.spawn import Spawned, spawn, vitals

_log = logging.getLogger("omlx.engine.process")
_ORPHAN_FLUSH_S = 2.0  # what an engine may still write once its server is gone
KILL_GRACE_S = 3.0  # beyond the flush, for ending threads and the interpreter
_BEAT_S = 1.0
_SPARE_S = 0.5  # a process that gets no work within it is a spare one


class EngineProcess:
    """The parent's side: implements Engine and Child over a socket pair."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        blas: str = "auto",
        take: Callable[[], Spawned] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`take` gives the process; without it one is started, with the BLAS of that setting."""
        self._config = config
        self._take_process = take or partial(spawn, blas)
        self._clock = clock
        self._state = EngineState.STARTING
        self._error: str | None = None
        self._snapshot: EngineSnapshot | None = None
        self._outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._was_ready = self._is_taking = False
        self._beat, self._heard_at = Beat(0, 0.0, clock(), clock()), 0.0
        self._live: set[str] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._listener: Listener | None = None
        self._watcher: Watcher | None = None

    @property
    def model_id(self) -> str:
        """The id of the model that it serves."""
        return self._config.model_id

    @property
    def pid(self) -> int | None:
        """The child's process id, once started."""
        return self._process.pid if self._process else None

    def start(self, listener: Listener, watcher: Watcher | None = None) -> None:
        """Start the process; it loads the model at once. EngineError.

        Without a watcher the requests that the process leaves behind fail.
        """
        assert self._process is None, "an engine starts once"
        spawned = self._take_process()
        self._process, ours = spawned.process, spawned.sock
        self._listener, self._watcher = listener, watcher
        self._beat = Beat(0, 0.0, self._clock(), self._clock())
        name = f"engine {self.model_id}"
        threading.Thread(target=self._write, args=(ours,), name=name, daemon=True).start()
        self._reader = threading.Thread(target=self._read, args=(ours,), name=name, daemon=True)
        self._reader.start()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; what comes too late fails, or is left to the watcher."""
        with self._lock:
            is_alive = self._state not in (EngineState.FAILED, EngineState.STOPPED)
            if is_alive:
                self._live.add(request.id)
        if is_alive:
            self._outbox.put(request_frame(request))
        elif self._watcher is None:
            self._deliver([Failed(request.id, FailureCode.ENGINE, self._why())])

    def abort(self, request_id: str) -> None:
        """End a request within one step."""
        self._outbox.put({"kind": "abort", "request_id": request_id})

    def allow(self, limit_bytes: int) -> None:
        """Use at most so much memory from the next step on, or from the load on."""
        self._config = replace(self._config, allowed_bytes=limit_bytes)
        if self._process is not None:
            self._outbox.put(limit_frame(limit_bytes))

    def state(self) -> EngineState:
        """Where the engine is in its life."""
        return self._state

    def error(self) -> str | None:
        """Why the engine failed."""
        return self._error

    def snapshot(self) -> EngineSnapshot | None:
        """The latest figures."""
        return self._snapshot

    def beat(self) -> Beat:
        """When the process and its loop last showed that they live.

        While its listener holds the reader up, it is not the process that is silent.
        """
        if not self._is_taking:
            return replace(self._beat, heard_at=max(self._beat.heard_at, self._heard_at))
        return replace(self._beat, at=self._clock(), heard_at=self._clock())

    def vitals(self) -> Vitals:
        """What the system says of the process."""
        return vitals(self.pid)

    def ask_to_stop(self, timeout_s: float) -> None:
        """Have it flush within the limit and end."""
        self._outbox.put({"kind": "stop", "timeout_s": timeout_s})

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def stop(self, timeout_s: float) -> int | None:
        """Have it flush and end; kill it when it takes longer than the limit and a little."""
        process = self._process
        if process is None:
            return None
        self.ask_to_stop(timeout_s)
        code = _wait(process, timeout_s + KILL_GRACE_S)
        self._outbox.put(None)
        if self._reader is not None:
            self._reader.join(1.0)
        return code

    def _write(self, sock: socket.socket) -> None:
        for frame in chain([_start_frame(self._config)], iter(self._outbox.get, None)):
            try:
                send(sock, frame)
            except OSError:
                return  # the reader sees the end as well and reports it

    def _read(self, sock: socket.socket) -> None:
        with sock:
            for frame in received(sock):
                self._heard_at = self._clock()
                self._is_taking = True
                self._take(frame)
                self._is_taking = False
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
        elif kind == "beat":
            now = self._clock()
            self._beat = Beat(frame["num_turns"], frame["age_s"], now, now)
        elif kind == "work":
            if self._watcher is not None:
                self._watcher.on_work(frame["request_id"])
        else:
            assert kind == "state", kind
            self._changed(EngineState(frame["state"]), frame["error"])

    def _changed(self, state: EngineState, error: str | None) -> None:
        with self._lock:
            self._state, self._error = state, error
            if state is EngineState.READY:
                self._was_ready, now = True, self._clock()
                self._beat = Beat(0, 0.0, now, now)  # the turns are counted from here
        if state is not EngineState.FAILED:
            return
        if self._watcher is None:
            self._fail_live()
        else:
            self.kill()  # its engine thread has ended: nothing more comes of it

    def _ended(self) -> None:
        """The child has closed its side: what still ran has failed, or its watcher takes it on."""
        assert self._process is not None
        code = _wait(self._process, KILL_GRACE_S)
        self._outbox.put(None)  # nobody reads it any more
        with self._lock:
            own_error = self._error
            is_clean = code == 0 and self._state is EngineState.STOPPED
            if not is_clean:
                self._error = own_error or f"the engine process ended with exit code {code}"
                self._state = EngineState.FAILED
        if self._watcher is not None:
            self._watcher.on_end(Ending(code, own_error, self._was_ready, is_clean))
            return
        if not is_clean:
            _log.error("engine %s: %s", self.model_id, self._error)
        self._fail_live()

    def _fail_live(self) -> None:
        with self._lock:
            lost, self._live = self._live, set()
        if lost:
            self._deliver([Failed(i, FailureCode.ENGINE, self._why()) for i in sorted(lost)])

    def _why(self) -> str:
        return self._error or "the engine has ended"

    def _deliver(self, events: list[Event]) -> None:
        assert self._listener is not None
        self._listener(events)


def _start_frame(config: EngineConfig) -> Frame:
    return {"kind": "start", "config": asdict(config)}


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """The exit code of a process that is to end, killed if it does not within the limit."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        _log.warning("process %d did not end in time and is killed", process.pid)
        process.kill()
        return process.wait()


def run_child(sock: socket.socket) -> int:
    """The child's main thread: frames in, until the server says stop or is gone."""
    first = _first_frame(sock)
    if first is None:
        return 1
    config = EngineConfig(**first["config"])
    _set_up_log(config)

    lock = threading.Lock()  # a submit that fails at once answers on this thread

    def tell(make: Callable[[], Frame]) -> None:
        """Send a frame, made when it is its turn; it waits while the server does not read."""
        try:
            with lock:
                send(sock, make())
        except OSError:
            _log.debug("the server is gone")

    pulse = Pulse(lambda request_id: tell(lambda: {"kind": "work", "request_id": request_id}))
    _start_beating(pulse, tell)

    from omlx.engine.build import assemble
    from omlx.engine.engine import LocalEngine

    def changed() -> None:
        if pulse.num_turns == 0 and engine.state() is EngineState.READY:
            pulse.turned()  # the load is over
        tell(lambda: {"kind": "state", "state": engine.state().value, "error": engine.error()})
        if engine.snapshot() is not None:
            tell(lambda: {"kind": "snapshot", "snapshot": engine.snapshot()})

    def forward(events: Sequence[Event]) -> None:
        if engine.state() is not EngineState.FAILED:  # else the server knows what it still has
            tell(lambda: events_frame(events))

    build = partial(assemble, pulse=pulse, is_awaited=lambda: engine.is_awaited())
    engine = LocalEngine(config, on_change=changed, build=build)
    engine.start(forward)
    timeout_s = _ORPHAN_FLUSH_S
    while (frame := receive(sock)) is not None:
        if frame["kind"] == "submit":
            engine.submit(request_from(frame))
        elif frame["kind"] == "abort":
            engine.abort(frame["request_id"])
        elif frame["kind"] == "limit":
            engine.allow(limit_from(frame))
        else:
            assert frame["kind"] == "stop", frame["kind"]
            timeout_s = frame["timeout_s"]
            break
    return engine.stop(timeout_s) or 0


def _set_up_log(config: EngineConfig) -> None:
    path = None if config.log_file is None else Path(config.log_file)
    file = path and log.LogFile(path, config.log_max_bytes, config.log_keep)
    try:
        log.setup(config.log_level, tag=config.model_id, file=file)
    except OSError:  # stderr is where the server's was
        log.setup(config.log_level, tag=config.model_id)


def _first_frame(sock: socket.socket) -> Frame | None:
    """What to load. A process that has to wait for it, a spare one, does its imports meanwhile."""
    if not select.select([sock], [], [], _SPARE_S)[0]:
        importlib.import_module("omlx.engine.build")  # mlx belongs to this process only
        importlib.import_module("omlx.engine.engine")
    return receive(sock)


def _start_beating(pulse: Pulse, tell: Callable[[Callable[[], Frame]], None]) -> None:
    """Tell once a second when the engine's loop last made a turn, on a thread that only waits."""

    def beat() -> Frame:
        return {"kind": "beat", "num_turns": pulse.num_turns, "age_s": pulse.age_s}

    def run() -> None:
        while True:
            tell(beat)
            time.sleep(_BEAT_S)

    threading.Thread(target=run, name="beat", daemon=True).start()


def main() -> int:
    """Entry point of `python -m omlx.engine.process FD`."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)  # the server says when to end, or its socket closes
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        return run_child(sock)


if __name__ == "__main__":
    sys.exit(main())
