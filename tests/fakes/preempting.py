"""A scheduler that takes running requests out at random, and requests that are compared with an
undisturbed run."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from omlx.engine.request import SamplingParams
from omlx.engine.scheduler import Scheduler
from omlx.engine.turns import Stage
from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness

TIE = 1e-3  # a smaller gap between the two best logits may be decided by a batch's last bits
_RUNNING = (Stage.READY, Stage.PREFILLING, Stage.DECODING)


class Preempting(Scheduler):
    """Also preempts one running request at every fifth step or so, in whatever stage it is."""

    chance = 0.2
    seed = 1

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.random = random.Random(self.seed)
        self.stages: list[Stage] = []

    def victim(self) -> str | None:
        """A random one at a random step."""
        running = [e for e in self._entries.values() if e.stage in _RUNNING]
        if not running or self.random.random() > self.chance:
            return None
        chosen = self.random.choice(running)
        self.stages.append(chosen.stage)
        return chosen.id


def prompts(num: int, seed: int) -> list[list[int]]:
    """Prompts of 2 to 300 tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, tiny.NUM_VOCAB, rng.integers(2, 300)).tolist() for _ in range(num)]


def first_difference(found: Answer, alone: Answer) -> tuple[int, float] | None:
    """Where an answer leaves the undisturbed one, and the gap of the two best logits there."""
    for i, (a, b) in enumerate(zip(found.tokens, alone.tokens, strict=False)):
        if a != b:
            second, first = np.sort(alone.logits[i])[-2:]
            return i, float(first - second)
    if len(found.tokens) != len(alone.tokens):
        return min(len(found.tokens), len(alone.tokens)), np.inf
    return None


def preempt_at_random(
    kind: str, folder: Path, *, least: int, num_tokens: int = 24
) -> tuple[dict[Stage, int], int, int]:
    """Answer prompts, four at a time, until so many were preempted; how many in which stage, how
    many answers there were, and how many differ from an undisturbed run at a tie. Any other
    difference is an AssertionError."""
    model = tiny.build(kind)
    sizes = {"block_size": 32, "prefill_chunk": 64, "snapshot_interval": 256}
    calm = Harness(model, folder / "calm", **sizes)
    made: list[Preempting] = []

    def make_scheduler(*args: Any) -> Scheduler:
        made.append(Preempting(*args))
        return made[-1]

    wild = Harness(model, folder / "wild", make_scheduler=make_scheduler, max_active=4, **sizes)
    num_answers = num_ties = 0
    while not made or len(made[0].stages) < least:
        sampling = SamplingParams(temperature=0.0)
        todo = prompts(4, seed=1000 + num_answers)
        alone = [calm.ask(p, num_tokens, sampling=sampling) for p in todo]
        ids = [wild.submit(p, num_tokens, sampling=sampling) for p in todo]
        answers = wild.collect(*ids)
        for name, expected in zip(ids, alone, strict=True):
            assert answers[name].failed is None, answers[name].failed
            where = first_difference(answers[name], expected)
            assert where is None or where[1] < TIE, (kind, where)
            num_ties += where is not None
        num_answers += len(todo)
    for harness in (calm, wild):
        assert harness.stop() == 0
    counts = {stage: made[0].stages.count(stage) for stage in _RUNNING}
    return counts, num_answers, num_ties
