"""What a row tells of itself: the parts of TTFT, and where its prompt left what is stored."""

from dataclasses import replace

from omlx.cache.hashing import chain_hashes, compute_block_hash, token_array
from omlx.engine.request import Admitted, EngineRequest, Finished, RequestStats, Started, Trail
from omlx.engine.row import Row
from tests.fakes.cache import BLOCK, ROOT, Rig
from tests.fakes.loop import LoopRig, Outcome

LONG = [i % 40 + 1 for i in range(3 * BLOCK + 2)]


def parts(stats: RequestStats) -> float:
    return stats.queue_s + stats.load_s + stats.restore_s + stats.prefill_s + stats.bookkeeping_s


def row_at(**times: float) -> Row:
    row = Row(EngineRequest("r", (1, 2, 3), 5), 1.0)
    for name, value in times.items():
        setattr(row, name, value)
    return row


def test_the_parts_sum_to_ttft() -> None:
    row = row_at(admitted_at=3.0, loaded_at=4.5, insert_at=5.5, restored_at=5.75, prefill_at=6.0)
    stats = row.start(9.0)
    assert (stats.queue_s, stats.load_s, stats.restore_s) == (3.0, 1.5, 0.25)
    assert (stats.prefill_s, stats.bookkeeping_s, stats.ttft_s) == (3.25, 0.0, 8.0)
    assert parts(stats) == stats.ttft_s


def test_the_parts_do_not_change_after_the_first_token() -> None:
    row = row_at(admitted_at=3.0, loaded_at=4.0, insert_at=5.0, restored_at=5.0, prefill_at=5.0)
    first = row.start(9.0)
    row.emitted += [7, 8]
    row.restart()
    row.admitted_at = 20.0
    assert row.stats(30.0) == replace(first, generated_tokens=2, decode_s=21.0)


def test_a_row_that_ran_again_before_its_first_token_waited_for_both_runs() -> None:
    row = row_at(admitted_at=2.0, loaded_at=3.0, insert_at=3.0, restored_at=3.0, prefill_at=3.0)
    row.restart()
    row.admitted_at, row.loaded_at, row.insert_at, row.restored_at = 10.0, 11.0, 12.0, 13.0
    stats = row.start(20.0)
    assert (stats.queue_s, stats.load_s, stats.restore_s, stats.prefill_s) == (10.0, 1.0, 1.0, 7.0)
    assert parts(stats) == stats.ttft_s


def test_a_row_that_never_ran_has_only_waited() -> None:
    stats = row_at().stats(4.0)
    assert stats.queue_s == stats.ttft_s == 3.0


def trail_of(outcome: Outcome) -> Trail | None:
    (admitted,) = [e for e in outcome.events if isinstance(e, Admitted)]
    return admitted.trail


def test_the_stats_come_with_the_first_token() -> None:
    rig = LoopRig()
    outcome = rig.submit(LONG, 3)
    rig.until()
    (started,) = [e for e in outcome.events if isinstance(e, Started)]
    assert outcome.kinds.index("Started") == outcome.kinds.index("Token") - 1
    assert isinstance(outcome.last, Finished)
    last = outcome.last.stats
    assert started.stats == replace(last, generated_tokens=0, decode_s=0.0)
    assert parts(last) == last.ttft_s > 0


def test_a_trail_comes_with_the_admission() -> None:
    rig = LoopRig(cache=Rig())
    first = rig.submit(LONG, 2)
    rig.until()
    trail = trail_of(first)
    names = chain_hashes(ROOT, token_array(LONG), BLOCK)
    rest = compute_block_hash(ROOT, names[-1], LONG[3 * BLOCK : -1])
    assert trail == Trail(ROOT.hex(), BLOCK, tuple(n.hex() for n in names), rest.hex(), 0, None)
    changed = [*LONG[: BLOCK + 1], 49, *LONG[BLOCK + 2 :]]
    second = rig.submit(changed, 2)
    rig.until()
    trail = trail_of(second)
    assert trail is not None
    assert (trail.shared, trail.nearest) == (BLOCK + 1, names[1].hex())


def test_a_model_without_a_cache_leaves_no_trail() -> None:
    rig = LoopRig()
    outcome = rig.submit(LONG, 2)
    rig.until()
    assert trail_of(outcome) is None
