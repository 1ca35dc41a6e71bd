"""Cases D3 and K20: requests beside others, on time and with their own answers."""

from pathlib import Path

import numpy as np
import pytest

from omlx.engine.request import FinishReason, RequestClass
from omlx.engine.turns import Stage
from tests.fakes import tiny
from tests.fakes.cache import Rig
from tests.fakes.harness import Harness
from tests.fakes.loop import LoopRig, assert_as_solo
from tests.fakes.preempting import TIE, first_difference


@pytest.mark.parametrize("request_class", [RequestClass.INTERACTIVE, RequestClass.NORMAL])
def test_d3_a_short_question_does_not_wait_for_a_long_prefill(request_class: RequestClass) -> None:
    """Its prefix is cached; of the long one 700 chunks are left."""
    rig = LoopRig(cache=Rig())
    rig.submit([5] * 48, 1)
    rig.until()
    long = rig.submit([(i * 7) % 50 for i in range(6000)], 2)
    rig.until_stage(long, Stage.PREFILLING)
    for _ in range(40):
        rig.turn()
    short = rig.submit([5] * 49, 3, request_class=request_class)
    turns = 0
    while not short.tokens:
        rig.turn()
        turns += 1
    assert turns <= 8, "a few chunk times"
    assert rig.stage(long) is Stage.PREFILLING
    rig.until(limit=3000)
    for outcome in (long, short):
        assert_as_solo(outcome)


def test_d3_nor_does_the_long_prefill_starve_behind_short_questions() -> None:
    rig = LoopRig(cache=Rig(), max_active=4, max_waiting=64)
    long = rig.submit([(i * 7) % 50 for i in range(800)], 2, request_class=RequestClass.BATCH)
    rig.until_stage(long, Stage.PREFILLING)
    turns = 0
    while long.last is None:
        live = [o for o in rig.outcomes.values() if o.last is None]
        for i in range(4 - len(live)):
            rig.submit([i, turns % 50, (turns // 50) % 50, *range(20)], 1)
        rig.turn()
        turns += 1
        assert turns < 1000
    assert_as_solo(long)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize("num", [2, 4, 8])
def test_k20_concurrent_answers_are_those_of_solo_runs(kind: str, num: int, tmp_path: Path) -> None:
    """Each has a marker and a length of its own; some join only when others have left."""
    model = tiny.build(kind)
    sizes = {"block_size": 32, "prefill_chunk": 64}
    alone = Harness(model, tmp_path / "alone", **sizes)
    together = Harness(model, tmp_path / "together", max_active=max(2, num // 2 + 1), **sizes)
    rng = np.random.default_rng(num)
    shared = rng.integers(3, tiny.NUM_VOCAB, 70).tolist()
    todo = [
        ([*shared[: 17 * (i % 4)], 100 + i, *rng.integers(3, 500, 11 * i + 2).tolist()], 4 + 5 * i)
        for i in range(num)
    ]
    expected = [alone.ask(prompt, most) for prompt, most in todo]
    names = [together.submit(prompt, most) for prompt, most in todo]
    answers = together.collect(*names)
    for name, one in zip(names, expected, strict=True):
        assert answers[name].reason is FinishReason.LENGTH
        where = first_difference(answers[name], one)
        assert where is None or where[1] < TIE, (name, where)
    for harness in (alone, together):
        assert harness.stop() == 0
