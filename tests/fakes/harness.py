"""An engine in this process around a model, driven one request at a time, with its logits seen."""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.engine.build import assemble_loaded
from omlx.engine.config import EngineConfig
from omlx.engine.engine import LocalEngine
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    Event,
    Failed,
    Finished,
    FinishReason,
    RequestStats,
    SamplingParams,
    Token,
)
from omlx.engine.scheduler import Scheduler
from omlx.models.load import LoadedModel


class RecordingModel:
    """A model whose logits of single-token steps are kept, in order, as numpy arrays."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.steps: list[mx.array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        logits = self._model(inputs, cache=cache)
        if inputs.shape[1] == 1:
            exact = logits.astype(mx.float32)  # numpy knows no bfloat16; widening is exact
            mx.eval(exact)
            self.steps.append(exact)
        return logits


@dataclass
class Answer:
    """What came of one request; `logits` has one row [V] a step, the first token's first."""

    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    stats: RequestStats | None = None
    failed: Failed | None = None
    logits: list[np.ndarray] = field(default_factory=list)
    admitted: Admitted | None = None

    @property
    def cached(self) -> int:
        assert self.stats is not None
        return self.stats.cached_memory + self.stats.cached_disk


_running: set[LocalEngine] = set()


def stop_all() -> None:
    """End the engines that a failed test has left running: pytest would wait for their threads."""
    for engine in list(_running):
        engine.stop(10.0)


class Harness:
    """Starts and stops engines on one cache directory, as restarts of one program would."""

    def __init__(
        self,
        model: Any,
        cache_dir: Path,
        *,
        make_scheduler: Callable[..., Scheduler] = Scheduler,
        **config: Any,
    ) -> None:
        self.make_scheduler = make_scheduler
        self.model = RecordingModel(model)
        self.num_vocab = int(model(mx.array([[0]])).shape[-1])
        # What a busy machine takes for a tiny model says nothing on what is worth loading.
        # Warming every engine up would take most of the tests' time.
        base = EngineConfig(
            "tiny",
            "",
            cache_dir=str(cache_dir),
            min_free_bytes=0,
            load="always",
            warm_up=False,
        )
        self.config = replace(base, **config)
        self.events: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self.ids = count()
        self.engine = self._start()

    def _start(self) -> LocalEngine:
        engine = self.make_engine()
        engine.start(self.events.put)
        _running.add(engine)
        return engine

    def make_engine(self) -> LocalEngine:
        """An engine that is not started yet."""

        def build(config: EngineConfig, *, emit: Any, publish: Any) -> Any:
            loaded = LoadedModel(self.model, {}, self.num_vocab, 0)
            return assemble_loaded(
                config,
                loaded,
                "00" * 32,
                emit=emit,
                publish=publish,
                make_scheduler=self.make_scheduler,
            )

        return LocalEngine(self.config, build=build)

    def restart(self) -> None:
        """Stop cleanly and start again with an empty memory tier."""
        assert self.stop() == 0
        self.engine = self._start()

    def stop(self) -> int | None:
        _running.discard(self.engine)
        return self.engine.stop(10.0)

    def submit(self, prompt: Sequence[int], max_tokens: int = 4, **fields: Any) -> str:
        request_id = f"r{next(self.ids)}"
        sampling = fields.pop("sampling", SamplingParams())
        request = EngineRequest(request_id, tuple(prompt), max_tokens, sampling, **fields)
        self.engine.submit(request)
        return request_id

    def collect(self, *request_ids: str, timeout_s: float = 60) -> dict[str, Answer]:
        """Wait until all of these are over."""
        answers = {i: Answer() for i in request_ids}
        left = set(request_ids)
        while left:
            for event in self.events.get(timeout=timeout_s):
                answer = answers.setdefault(event.request_id, Answer())
                if isinstance(event, Admitted):
                    answer.admitted = event
                elif isinstance(event, Token):
                    answer.tokens.append(event.token)
                elif isinstance(event, Finished):
                    answer.reason, answer.stats = event.reason, event.stats
                    left.discard(event.request_id)
                elif isinstance(event, Failed):
                    answer.failed = event
                    left.discard(event.request_id)
        return answers

    def ask(self, prompt: Sequence[int], max_tokens: int = 4, **fields: Any) -> Answer:
        """Run one request alone and keep the logits of each of its steps."""
        self.model.steps.clear()
        request_id = self.submit(prompt, max_tokens, **fields)
        answer = self.collect(request_id)[request_id]
        # The batch computes one step ahead of what it emits; a prefill of one token comes before.
        num_steps = len(answer.tokens) + 1
        steps = self.model.steps[-num_steps:]
        answer.logits = [np.array(a)[0, -1] for a in steps]
        return answer
