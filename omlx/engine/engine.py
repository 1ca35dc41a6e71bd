"""An engine in this process, on a thread of its own.

Knows nothing about sockets or other processes; the twin in another process is `process`.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx

from omlx.engine.build import Assembly, assemble
from omlx.engine.config import EngineConfig
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
from omlx.errors import OmlxError

_log = logging.getLogger("omlx.engine")
_OVER = (EngineState.STOPPED, EngineState.FAILED)


def _nothing() -> None:
    """The default of `on_change`."""


class LocalEngine:
    """Loads one model on its engine thread and runs the loop there; implements Engine.

    `on_change` is called on the engine thread whenever state or snapshot have changed.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_change: Callable[[], None] = _nothing,
        build: Callable[..., Assembly] = assemble,
    ) -> None:
        self._config = config
        self._on_change = on_change
        self._build = build
        self._state = EngineState.STARTING
        self._error: str | None = None
        self._snapshot: EngineSnapshot | None = None
        self._assembly: Assembly | None = None
        self._lock = threading.Lock()
        self._early: list[Callable[[Assembly], None]] = []
        self._live: set[str] = set()
        self._flush_s = config.drain_s
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None

    @property
    def model_id(self) -> str:
        """The id of the model that it serves."""
        return self._config.model_id

    def start(self, listener: Listener) -> None:
        """Begin to load on the engine thread."""
        assert self._thread is None, "an engine starts once"
        self._listener = listener
        name = f"engine {self.model_id}"
        self._thread = threading.Thread(target=self._main, name=name)
        self._thread.start()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; before the model is loaded it waits for it."""
        with self._lock:
            is_over = self._state in _OVER
            if not is_over:
                self._live.add(request.id)
        if is_over:
            self._fail([request.id])
        else:
            self._call(lambda assembly: assembly.submit(request))

    def _emit(self, events: Sequence[Event]) -> None:
        over = {e.request_id for e in events if isinstance(e, Finished | Failed)}
        with self._lock:
            self._live -= over
        assert self._listener is not None
        self._listener(events)

    def _fail(self, request_ids: Iterable[str]) -> None:
        why = self._error or "the engine has ended"
        events = [Failed(i, FailureCode.ENGINE, why) for i in request_ids]
        if events and self._listener is not None:
            self._listener(events)

    def abort(self, request_id: str) -> None:
        """End a request within one step."""
        self._call(lambda assembly: assembly.abort(request_id))

    def allow(self, limit_bytes: int) -> None:
        """Use at most so much of `engine.memory_limit` from the next step on."""
        self._call(lambda assembly: assembly.allow(limit_bytes))

    def is_awaited(self) -> bool:
        """Whether a request waits for the model to be loaded."""
        return self._assembly is None and bool(self._live)

    def release(self, timeout_s: float) -> bool:
        """Drop the blocks in memory, those that are on no disk are written, and give freed buffers
        back to the system; False if that is not done within the limit."""
        done = threading.Event()
        self._call(lambda assembly: assembly.release(done.set))
        return done.wait(timeout_s)

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
        """Abort what runs, write what is dirty within the limit, join the thread."""
        self._flush_s = timeout_s
        self._call(lambda assembly: assembly.loop.stop())
        if self._thread is not None:
            self._thread.join()
        return 0 if self._state is EngineState.STOPPED else 1

    def _call(self, action: Callable[[Assembly], None]) -> None:
        with self._lock:
            assembly = self._assembly
            if assembly is None:
                self._early.append(action)
                return
        action(assembly)

    def _main(self) -> None:
        try:
            self._set_state(EngineState.LOADING)
            assembly = self._build(self._config, emit=self._emit, publish=self._publish)
            with self._lock:
                self._assembly = assembly
                early, self._early = self._early, []
            for action in early:
                action(assembly)
            self._set_state(EngineState.READY)
            assembly.loop.run()
            self._set_state(EngineState.DRAINING)
            assembly.close(self._flush_s)
            self._set_state(EngineState.STOPPED)
        except OmlxError as error:
            self._error = f"{error.message} (hint: {error.hint})" if error.hint else error.message
            _log.error("%s", self._error)
            self._set_state(EngineState.FAILED)
        finally:
            with self._lock:
                self._assembly = None
                if self._state is not EngineState.STOPPED:
                    self._error = self._error or "the engine thread ended by an error of its own"
                    self._state = EngineState.FAILED
                lost, self._live = self._live, set()
            self._fail(sorted(lost))
            self._on_change()
            mx.clear_streams()  # without it the process can abort at exit

    def _set_state(self, state: EngineState) -> None:
        self._state = state
        self._on_change()

    def _publish(self, snapshot: EngineSnapshot) -> None:
        self._snapshot = snapshot
        self._on_change()
