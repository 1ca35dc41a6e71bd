"""A real server on a free port, over scripted engines, on a thread of its own."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvloop

from omlx.models.locate import ModelEntry
from omlx.server.context import Places, ServerContext, Timing
from omlx.server.desk import Desk
from omlx.server.ledger import Ledger
from omlx.server.loop import serve
from omlx.server.service import Service
from omlx.server.warm import WarmPlan
from omlx.settings.build import ModelSettings
from omlx.settings.engines import Scheduler
from omlx.settings.prompts import Agent, Prompt
from omlx.settings.schema import Cache, Log, Models, Sampling, Server, Settings
from omlx.settings.schema import Journal as JournalSettings
from omlx.storage.journal import Journal
from omlx.storage.toolsets import ToolSets
from tests.fakes.engine import PATIENCE_S, FakePool, ScriptedEngine
from tests.fakes.text import FakeText

QUICK = Timing(head_grace_s=0.02, first_event_s=0.05, body_s=5.0, farewell_s=0.3)


def entry(model_id: str = "fake", *, window: int | None = None, path: str = "") -> ModelEntry:
    """A model that is nowhere on disk."""
    return ModelEntry(
        id=model_id,
        path=Path(path or f"/models/{model_id}"),
        model_type="llama",
        context_window=window,
        weight_bytes=0,
        dtype="float32",
        quantization=None,
    )


@dataclass
class Plan:
    """What a server under test is made of."""

    server: Server = field(default_factory=lambda: Server(port=0))
    scheduler: Scheduler = field(default_factory=Scheduler)
    sampling: Sampling = field(default_factory=Sampling)
    context_window: int | None = None
    timing: Timing = QUICK
    max_backlog: int = 10_000
    text: FakeText = field(default_factory=FakeText)
    texts: Callable[[ModelEntry], FakeText] | None = None
    engines: list[ScriptedEngine] = field(default_factory=lambda: [ScriptedEngine()])
    entries: list[ModelEntry] = field(default_factory=lambda: [entry()])
    cache: Cache = field(default_factory=Cache)
    journal: JournalSettings = field(default_factory=JournalSettings)
    journal_path: Path | None = None
    prompt: Prompt = field(default_factory=Prompt)
    agent: Agent = field(default_factory=Agent)
    tool_sets: ToolSets | None = None
    keys_path: Path | None = None
    profiles: dict[str, list[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    warm: WarmPlan | None = None
    wants_rerender: Callable[[], bool] | None = None
    ledger: Ledger | None = None
    desk: Desk | None = None
    places: Places | None = None
    adopt: Callable[[str], str | None] = lambda folder: None
    log: Log = field(default_factory=Log)
    # Settings by id or model:profile, where they are not those of all.
    by_name: dict[str, ModelSettings] = field(default_factory=dict)

    def context(self) -> ServerContext:
        """The server's context."""
        settings = ModelSettings(
            self.sampling,
            self.context_window,
            {},
            {},
            cache=self.cache,
            prompt=self.prompt,
            agent=self.agent,
        )
        return ServerContext(
            settings=Settings(
                server=self.server,
                scheduler=self.scheduler,
                cache=self.cache,
                journal=self.journal,
                log=self.log,
                models=Models(alias=tuple(self.aliases.items())),
            ),
            profiles=self.profiles,
            refused=self.refused,
            pool=FakePool(self.entries, self.engines),
            texts=self.texts or (lambda _: self.text),
            model_settings=lambda name: self.by_name.get(name, settings),
            timing=self.timing,
            max_backlog=self.max_backlog,
            keys_path=self.keys_path,
            tool_sets=self.tool_sets,
            ledger=self.ledger,
            desk=self.desk,
            places=self.places,
            adopt=self.adopt,
            journal=self.journal_path
            and Journal(self.journal_path, max_bytes=10**9, max_age_s=10**6, clock=time.time),
        )


class Running:
    """A server that runs, and clients for it."""

    def __init__(self, plan: Plan, service: Service, finish: Callable[[], None]) -> None:
        self.plan = plan
        self.service = service
        self._finish = finish
        self.url = service.address
        # Making a TLS context costs more than most tests.
        options = {"base_url": service.address, "timeout": PATIENCE_S, "verify": False}
        self.http = httpx.Client(**options)
        self.stranger = httpx.Client(**options)

    def stop(self) -> None:
        """Let it drain and wait for its end; may be called again."""
        self.http.close()
        self.stranger.close()
        self._finish()

    @property
    def engine(self) -> ScriptedEngine:
        return self.plan.engines[0]

    @property
    def text(self) -> FakeText:
        return self.plan.text

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def chat(self, content="hi", **fields):
        """POST a chat completion."""
        body = {"model": "fake", "messages": [{"role": "user", "content": content}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def message(self, content="hi", **fields):
        """POST a message."""
        messages = [{"role": "user", "content": content}]
        body = {"model": "fake", "max_tokens": 100, "messages": messages, **fields}
        return self.http.post("/v1/messages", json=body)

    def respond(self, given="hi", **fields):
        """POST a response."""
        return self.http.post("/v1/responses", json={"model": "fake", "input": given, **fields})

    def complete(self, prompt="hi", **fields):
        """POST a completion."""
        return self.http.post("/v1/completions", json={"model": "fake", "prompt": prompt, **fields})


@contextmanager
def running(plan: Plan | None = None) -> Iterator[Running]:
    """Run a server until the block ends; what it raises, the block raises."""
    thread = _Thread(plan or Plan())
    thread.start()
    server = Running(thread.plan, thread.service(), thread.finish)
    try:
        yield server
    finally:
        server.stop()


class _Thread(threading.Thread):
    def __init__(self, plan: Plan) -> None:
        super().__init__(name="server-under-test")
        self.plan = plan
        self.exit_code: int | None = None
        self._bound = threading.Event()
        self._service: Service | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self.exit_code = runner.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._bound.set()

    async def _serve(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._wish = asyncio.Event()

        def on_bound(service: Service) -> None:
            self._service = service
            self._bound.set()

        return await serve(
            self.plan.context(),
            on_bound=on_bound,
            stop=self._wish,
            warm=self.plan.warm,
            wants_rerender=self.plan.wants_rerender,
        )

    def service(self) -> Service:
        assert self._bound.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        assert self._service is not None
        return self._service

    def finish(self) -> None:
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._wish.set)
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the server did not stop"
        if self._error is not None:
            raise self._error
        assert self.exit_code == 0
