"""What a row leaves in the cache: where its request wants it, and its tail not before it ends."""

import pytest

from omlx.cache.policy import StorePolicy
from omlx.engine.request import FinishReason
from omlx.engine.turns import Stage
from tests.fakes.cache import Rig
from tests.fakes.loop import LoopRig

LONG = [*range(1, 31)]  # seven full blocks and a tail of one, without the last token


def cache_of(rig: LoopRig) -> Rig:
    assert rig.cache is not None
    return rig.cache


def wait(rig: LoopRig) -> None:
    """Let the write delay pass while nothing runs."""
    for _ in range(5):
        rig.turn()


def test_a_request_that_stores_nothing_still_hits() -> None:
    rig = LoopRig(cache=Rig())
    rig.submit(LONG, 2, store=StorePolicy.OFF)
    rig.until()
    wait(rig)
    assert (cache_of(rig).in_memory(), cache_of(rig).on_disk()) == ([], [])
    rig.submit(LONG, 2)
    rig.until()
    wait(rig)
    held, files = cache_of(rig).in_memory(), cache_of(rig).on_disk()
    hit = rig.submit([*LONG, 7, 8, 9, 10, 11], 6, store=StorePolicy.OFF)
    rig.until()
    wait(rig)
    assert hit.last.stats.cached_memory == len(LONG)
    assert (cache_of(rig).in_memory(), cache_of(rig).on_disk()) == (held, files)


def test_a_request_for_memory_only_writes_nothing_until_another_wants_it() -> None:
    rig = LoopRig(cache=Rig())
    first = rig.submit(LONG, 2, store=StorePolicy.MEMORY)
    rig.until()
    wait(rig)
    assert cache_of(rig).on_disk() == []
    assert len(cache_of(rig).in_memory()) == 8
    second = rig.submit([*LONG, *first.tokens, 7], 2)
    rig.until()
    wait(rig)
    assert second.last.stats.cached_memory == len(LONG) + 2
    assert sum(cache_of(rig).on_disk()) == len(LONG) + 5


def test_a_prompt_that_nobody_may_take_over_makes_nobody_wait() -> None:
    rig = LoopRig(cache=Rig(), max_active=2)
    rig.submit(LONG, 5, store=StorePolicy.OFF)
    second = rig.submit([*LONG, 7], 2)
    rig.turn()
    rig.turn()
    assert rig.stage(second) is not Stage.LOADING
    rig.until()


def decoding(max_tokens: int = 40, **options: int) -> LoopRig:
    """A row that has decoded a token of a long reply."""
    rig = LoopRig(cache=Rig(**options))
    outcome = rig.submit(LONG, max_tokens)
    rig.until_stage(outcome, Stage.DECODING)
    return rig


@pytest.mark.parametrize("memory_bytes", [0, 1 << 40])
def test_the_tail_of_a_prompt_is_not_written_while_its_row_runs(memory_bytes: int) -> None:
    rig = decoding(memory_bytes=memory_bytes)
    outcome = rig.outcomes["r0"]
    while len(outcome.tokens) < 2:
        rig.turn()
    wait(rig)
    assert 1 not in cache_of(rig).on_disk(), "its tail"
    assert cache_of(rig).look_up([*LONG[:-1], 49]).num_tokens == len(LONG) - 1
    rig.until()
    wait(rig)
    written = cache_of(rig).disk.counters().blocks_written
    assert sum(cache_of(rig).on_disk()) == len(LONG) + 40
    assert written == len(cache_of(rig).on_disk()), "nothing was written in vain"


@pytest.mark.parametrize("how", ["abort", "stop", "fault", "failure"])
@pytest.mark.parametrize("memory_bytes", [0, 1 << 40])
def test_what_was_held_is_written_however_the_row_ends(how: str, memory_bytes: int) -> None:
    rig = decoding(memory_bytes=memory_bytes)
    outcome = rig.outcomes["r0"]
    if how == "abort":
        rig.abort(outcome)
    elif how == "stop":
        rig.loop.stop()
        rig.loop.run()
    elif how == "fault":
        rig.batch.faulty.add("r0")
    else:
        rig.batch.poison.add("r0")
    rig.until()
    assert outcome.reason in (FinishReason.ABORT, None)
    if how == "stop":
        cache_of(rig).restart()
    else:
        wait(rig)
    assert sum(cache_of(rig).on_disk()) >= len(LONG) - 1
    assert cache_of(rig).writeback.dirty_bytes == 0
    assert cache_of(rig).disk.queued.num_bytes == 0


def test_a_prompt_is_not_cut_at_its_head_where_there_are_no_snapshots() -> None:
    rig = LoopRig(cache=Rig())
    rig.submit([*range(1, 50), *range(1, 50)], 1, head=70)
    rig.until()
    assert [len(segment) for segment in rig.batch.inserted[0].segments] == [97, 1]


def test_requests_with_different_salts_share_nothing() -> None:
    """P22: neither at the same time, nor one after the other."""
    rig = LoopRig(cache=Rig())
    both = [rig.submit(LONG, 2, salt=salt) for salt in ("a", "b")]
    rig.until()
    assert [one.last.stats.cached_memory for one in both] == [0, 0]
    again = [rig.submit(LONG, 2, salt=salt) for salt in ("a", "b", "", "c")]
    rig.until()
    most = len(LONG) - 1
    assert [one.last.stats.cached_memory for one in again] == [most, most, 0, 0]
