"""What all requests share: the way to the engines, the text thread, the counts, the state.

Knows nothing about HTTP; handlers and the run loop use it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from omlx import __version__
from omlx.engine.request import EngineSnapshot, EngineState
from omlx.models.locate import ModelEntry
from omlx.server import admin
from omlx.server.context import EnginePool, ModelText, ServerContext
from omlx.server.counting import Counting
from omlx.server.errors import busy, unavailable
from omlx.server.figures import EngineView
from omlx.server.generation import Dialect
from omlx.server.handling import Handling
from omlx.server.hub import Hub
from omlx.server.ledger import Said
from omlx.server.logtail import LogTail
from omlx.server.machinememory import machine_memory
from omlx.server.prompt import Prepared, count_tokens, prepare
from omlx.server.pulls import Pulls, fetch_in_process
from omlx.server.session import Caller, Course, Session, Watchers
from omlx.units import format_duration

_log = logging.getLogger("omlx.server")
T = TypeVar("T")
_UNUSABLE = (EngineState.FAILED, EngineState.STOPPED)


class Service:
    """One running server behind its sockets; for the loop's thread, but `status`.

    `on_open` is called for each request that is submitted to an engine, `on_answer` for its answer.
    """

    def __init__(self, context: ServerContext, hub: Hub) -> None:
        self.context = context
        self.hub = hub
        self.counting = Counting(context, self.engines)
        self.metrics = self.counting.metrics
        self._watchers = Watchers(
            self._opened, self.counting.admitted, self._closed, self._answered, self.metrics.gap
        )
        self.pulls = Pulls(fetch_in_process, context.adopt, context.clock)
        self.log = LogTail(context.settings.log.file)
        self.address = ""
        self.is_draining = False
        self._is_closed = False
        self.on_open: Callable[[], None] = _nothing
        self.on_answer: Callable[[Prepared, Said, str], None] = _nothing
        self._started = context.clock()
        self._active: Counter[str] = Counter()
        self.running: dict[int, Course] = {}  # those that are not over
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="omlx-text")
        scheduler = context.settings.scheduler
        self._most_active = scheduler.max_concurrent_requests + scheduler.max_queue

    async def prepare(
        self,
        dialect: Dialect,
        body: bytes,
        wanted: Handling,
        tenant: str = "",
        *,
        salt: str = "",
    ) -> Prepared:
        """Do the text work of a request on the text thread; ApiError says what is wrong."""
        work = partial(prepare, self.context, dialect, body, wanted, tenant, salt=salt)
        return await self.on_text_thread(work)

    async def count(self, dialect: Dialect, body: bytes, salt: str = "") -> int:
        """How many tokens a prompt has; ApiError says what is wrong with it."""
        return await self.on_text_thread(partial(count_tokens, self.context, dialect, body, salt))

    async def on_text_thread(self, work: Callable[[], T]) -> T:
        """The result of work with texts, of which one is done at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._text_thread, work)

    @property
    def num_active(self) -> int:
        """How many requests are not over."""
        return self._active.total()

    def warm_up(self) -> None:
        """Begin to load the text side of every model, so that the first request needn't."""
        for entry in self.context.pool.models():
            loading = self._text_thread.submit(_load_text, self.context, entry)
            loading.add_done_callback(lambda done, model=entry.id: _log_failure(model, done))

    def open_all(
        self, prepared: Prepared, request_id: str, arrived: float, caller: Caller
    ) -> list[Session]:
        """A session for each answer that a request wants; ApiError as `open`."""
        found = [self.open(prepared, request_id, arrived, caller)]
        self.metrics.changed(prepared.model_id, prepared.changes)
        for number in range(1, prepared.generation.num_choices):
            another = self.open(prepared.another(number), f"{request_id}.{number}", arrived, caller)
            found.append(another)
        return found

    def open(self, prepared: Prepared, request_id: str, arrived: float, caller: Caller) -> Session:
        """A session at the engine of a request's model; ApiError if that can't take it."""
        model_id = prepared.model_id
        engine = self.context.pool.get(model_id)
        if self.is_draining:
            raise unavailable("The server is stopping")
        state = engine.state()
        if state in _UNUSABLE and not self.context.pool.health(model_id).can_retry:
            reason = engine.error() or f"its engine is {state.value}"
            raise unavailable(f"The model {model_id!r} can't be used: {reason}")
        if self._active[model_id] >= self._most_active:
            raise busy(f"Too many requests wait for the model {model_id!r}")
        return Session(
            prepared,
            _course(prepared, request_id, arrived, caller),
            engine=engine,
            hub=self.hub,
            clock=self.context.clock,
            watchers=self._watchers,
        )

    def engines(self) -> list[EngineView]:
        """What every engine says of itself; for any thread."""
        pool = self.context.pool
        found = [(entry.id, pool.get(entry.id)) for entry in pool.models()]
        return [
            EngineView(
                model_id,
                engine.state(),
                engine.snapshot() or EngineSnapshot(),
                pool.health(model_id),
            )
            for model_id, engine in found
        ]

    def window(self, entry: ModelEntry, name: str | None = None) -> int | None:
        """How many tokens a prompt and its answer may have for a model; None if unknown.

        `name` is model:profile where a profile is meant.
        """
        own = self.context.model_settings(name or entry.id).context_window
        limits = (own, entry.context_window)
        return min((limit for limit in limits if limit is not None), default=None)

    def status(self) -> dict[str, object]:
        """The status object of `admin`; for any thread."""
        pool = self.context.pool
        views = [
            admin.ModelView(engine, self.window(entry), _fault(pool, entry.id))
            for entry, engine in zip(pool.models(), self.engines(), strict=True)
        ]
        server = admin.ServerView(
            __version__,
            self.context.clock() - self._started,
            self.address,
            self.is_draining,
            machine_memory=machine_memory(),
            last_day=self.counting.day.last_day(),
        )
        recent, parts = self.counting.recorder.recent(), self.counting.day.ttft_parts_s()
        return admin.status(server, self.metrics.totals(), views, recent, ttft_parts_s=parts)

    def health(self) -> tuple[str, list[dict[str, object]]]:
        """A word for the whole server, ready with one model that can be asked, and each one's."""
        engines = self.engines()
        word = "stopping" if self.is_draining else _word(engines)
        return word, [_health_of(engine) for engine in engines]

    def drain(self) -> None:
        """Take no more requests; those that run go on."""
        self.is_draining = True

    def close(self) -> None:
        """End the text thread once it is idle, and write what the journal still lacks."""
        self._is_closed = True
        self._text_thread.shutdown(wait=False, cancel_futures=True)
        if self.context.tool_sets is not None:
            self.context.tool_sets.close()
        self.counting.recorder.close()
        if self.context.ledger is not None:
            self.context.ledger.close()

    def _opened(self, course: Course) -> None:
        self._active[course.model_id] += 1
        self.running[id(course)] = course
        self.metrics.opened(course)
        self.on_open()

    def _answered(self, prepared: Prepared, said: Said, salt: str) -> None:
        """Have the ledger know an answer before a prompt that holds it can be looked at."""
        self.on_answer(prepared, said, salt)
        ledger, generation = self.context.ledger, prepared.generation
        if ledger is None or generation.prompt is not None or self._is_closed:
            return
        work = partial(ledger.record, prepared.text, said, salt=salt, store=prepared.store)
        self._text_thread.submit(work).add_done_callback(_log_loss)

    def _closed(self, course: Course) -> None:
        self._active[course.model_id] -= 1
        self.running.pop(id(course), None)
        self.counting.closed(course)
        _log.info("%s", _summary(course))


def _course(prepared: Prepared, request_id: str, arrived: float, caller: Caller) -> Course:
    return Course(
        request_id,
        prepared.model_id,
        arrived,
        len(prepared.tokens),
        caller,
        spans=prepared.spans,
        prompt=prepared.prompt,
        changes=prepared.changes,
    )


def _fault(pool: EnginePool, model_id: str) -> str | None:
    return pool.get(model_id).error() or pool.refusal(model_id) or None


def _health_of(engine: EngineView) -> dict[str, object]:
    return {
        "id": engine.model_id,
        "state": engine.state.value,
        "last_step_age_s": engine.health.last_step_age_s,
        "is_stalled": engine.health.is_stalled,
    }


def _word(engines: Sequence[EngineView]) -> str:
    ready = [engine for engine in engines if engine.state is EngineState.READY]
    if ready:
        return "stalled" if all(engine.health.is_stalled for engine in ready) else "ready"
    states = {engine.state for engine in engines}
    if states & {EngineState.STARTING, EngineState.LOADING}:
        return "loading"
    # A model that is not loaded is loaded by the next request.
    return "ready" if states & {EngineState.UNLOADED, EngineState.DRAINING} else "failed"


def _load_text(context: ServerContext, entry: ModelEntry) -> ModelText:
    """The text side, with what there is to warn of said now and not at the first request."""
    text = context.texts(entry)
    context.forms.of(text, context.model_settings(entry.id).parser)
    return text


def _nothing(*_: object) -> None:
    """Where nobody asks to be told of a request."""


def _log_loss(recording: Future[None]) -> None:
    error = None if recording.cancelled() else recording.exception()
    if error is not None:
        _log.error("the tokens of an answer were not kept", exc_info=error)


def _log_failure(model_id: str, loading: Future[ModelText]) -> None:
    error = None if loading.cancelled() else loading.exception()
    if error is not None:
        _log.error("%s: its tokenizer or template can't be loaded: %s", model_id, error)


def _summary(course: Course) -> str:
    """One line on a request, of numbers only."""
    parts = [
        f"{course.request_id} {course.model_id} {course.outcome}:",
        f"{course.prompt_tokens} prompt tokens",
        f"({course.cached_memory} from memory, {course.cached_disk} from disk),",
        f"{course.generated} generated",
    ]
    if course.first_token is not None:
        parts.append(f"ttft {format_duration(course.first_token - course.arrived)}")
    if course.ended is not None:
        parts.append(f"total {format_duration(course.ended - course.arrived)}")
    return " ".join(parts)
