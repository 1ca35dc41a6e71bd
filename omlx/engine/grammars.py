"""Compiles the grammars of requests on threads of its own, before they are queued.

Knows nothing about tokens, batches or how a grammar is kept to.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from omlx.engine.constrain import Compiled, Constraint, Vocabulary
from omlx.engine.request import (
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Grammar,
    RequestStats,
)
from omlx.errors import OmlxError

_MAX_KEPT = 128
_NUM_THREADS = 2


class Grammars:
    """The latest grammars, compiled; `tell` takes events of requests that never get to the loop."""

    def __init__(self, vocabulary: Vocabulary, *, tell: Callable[[Event], None]) -> None:
        self._vocabulary = vocabulary
        self._tell = tell
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Compiled] = OrderedDict()
        self._waiting: dict[str, EngineRequest] = {}
        self._pool = ThreadPoolExecutor(_NUM_THREADS, "grammar")  # its threads start when needed

    def prepare(self, request: EngineRequest, proceed: Callable[[EngineRequest], None]) -> None:
        """Compile the request's grammar, then `proceed`; a Failed if it can't be (any thread)."""
        with self._lock:
            self._waiting[request.id] = request
        self._pool.submit(self._prepare, request, proceed)

    def _prepare(self, request: EngineRequest, proceed: Callable[[EngineRequest], None]) -> None:
        grammar, wrong = request.sampling.grammar, ""
        assert grammar is not None
        try:
            self._compiled(grammar)
        except (ValueError, TypeError, RuntimeError, LookupError, OSError, OmlxError) as error:
            wrong = str(error)
        with self._lock:
            is_wanted = self._waiting.pop(request.id, None) is not None
        if is_wanted and wrong:
            message = f"the grammar can't be used: {wrong}"
            self._tell(Failed(request.id, FailureCode.BAD_REQUEST, message))
        elif is_wanted:
            proceed(request)

    def abort(self, request_id: str) -> bool:
        """End a request that waits for its grammar; False if there is none (any thread)."""
        with self._lock:
            request = self._waiting.pop(request_id, None)
        if request is None:
            return False
        size, num_emitted = len(request.tokens), len(request.emitted)
        stats = RequestStats(size, 0, 0, num_emitted, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._tell(Finished(request_id, FinishReason.ABORT, stats))
        return True

    def begin(self, grammar: Grammar, emitted: Sequence[int]) -> Constraint:
        """The constraint of a row that goes on after `emitted`."""
        return self._compiled(grammar).begin(emitted)

    def _compiled(self, grammar: Grammar) -> Compiled:
        with self._lock:
            known = self._kept.get(grammar)
            if known is not None:
                self._kept.move_to_end(grammar)
                return known
        made = Compiled(self._vocabulary, grammar)
        with self._lock:
            self._kept[grammar] = made
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return made

    def close(self) -> None:
        """Start no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
