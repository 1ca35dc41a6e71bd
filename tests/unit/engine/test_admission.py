"""What fits in memory: cases M1, M6 and M14 of the arithmetic, and of the loop on a fake batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.admission import Admission, Sizes, is_shortage
from omlx.engine.request import FailureCode, Finished, FinishReason, RequestClass
from omlx.engine.turns import Stage
from tests.fakes.batch import FakeBatch
from tests.fakes.cache import Rig
from tests.fakes.loop import NUM_VOCAB, LoopRig, assert_as_solo

SIZES = Sizes(weights=1000, token=2, row=100)
LONG = [*range(1, 31)]


def make(limit: int, held: int = 0) -> tuple[Admission, list[int]]:
    """A guard of so many bytes, and what it had released."""
    released: list[int] = []
    admission = Admission(SIZES, limit, held=lambda: held - sum(released), release=released.append)
    return admission, released


# ---- M1: refuse before allocating


def test_m1_weights_rows_padding_and_scratch_are_counted() -> None:
    admission, _ = make(1000 + 2 * (100 + 2 * 768))
    assert admission.fits([500, 10])
    assert not admission.fits([500, 10, 10]), "a batch is padded to its longest"
    assert not admission.fits([800, 10])
    admission.stepped(16, 1)
    assert not admission.fits([500, 10]), "a step needs a byte more"


def test_m1_what_can_never_fit_is_refused_with_the_numbers() -> None:
    admission, _ = make(100_000)
    most = admission.most_tokens
    assert most is not None and most % 256 == 0
    assert admission.refusal(most - 1) == ""
    assert admission.fits([most - 1])
    text = admission.refusal(most)
    assert "engine.memory_limit" in text and str(most) in text
    assert "100" in text and "kB" in text


@given(limit=st.integers(0, 10**6), num_tokens=st.integers(1, 10**6))
def test_m1_what_is_not_refused_fits_alone(limit: int, num_tokens: int) -> None:
    admission, _ = make(limit)
    if not admission.refusal(num_tokens):
        assert admission.fits([num_tokens])


def test_m1_a_model_whose_state_is_not_known_is_not_limited() -> None:
    admission = Admission(Sizes(1000), 2000)
    assert admission.refusal(10**9) == ""
    assert admission.fits([10**9] * 100)


# ---- M6: the same answer each time, and caches go first


def test_m6_the_same_request_gets_the_same_answer_fifty_times() -> None:
    rig = LoopRig(cache=Rig(), sizes=SIZES, limit_bytes=1000 + 100 + 2 * 512 + 50)
    for _ in range(50):
        outcome = rig.submit(LONG, 5)
        refused = rig.submit([1] * 600, 5)
        rig.until()
        assert_as_solo(outcome)
        assert refused.code is FailureCode.BAD_REQUEST
        assert "engine.memory_limit" in refused.last.message


def test_m6_the_cache_makes_way_before_anything_is_refused() -> None:
    admission, released = make(1000 + 100 + 2 * 512 + 300, held=1000)
    assert admission.fits([10])
    assert sum(released) == 700
    assert not admission.fits([10, 10])
    assert sum(released) == 700, "nothing is dropped for what does not fit anyway"


def test_m6_after_a_failed_allocation_the_limit_comes_back() -> None:
    admission, _ = make(1000 + 4 * (100 + 2 * 512))
    lengths = [10] * 4
    assert admission.fits(lengths)
    admission.failed(lengths)
    assert admission.fits(lengths[:2]) and not admission.fits(lengths[:3])
    for _ in range(30):
        admission.relaxed()
    assert admission.fits(lengths)


# ---- the share of one limit for several engines


ROW = 100 + 2 * 512


def test_a_share_limits_what_is_admitted_and_refuses_nothing() -> None:
    admission, _ = make(1000 + 4 * ROW)
    most = admission.most_tokens
    admission.set_limit(1000 + 2 * ROW)
    assert admission.fits([10, 10]) and not admission.fits([10, 10, 10])
    assert admission.most_tokens == most and not admission.refusal(700)
    admission.set_limit(10**9)
    assert admission.fits([10] * 4) and not admission.fits([10] * 5), "the limit stays the limit"
    admission.set_limit(0)
    assert admission.fits([1]), "one short row always fits"
    assert admission.use([]).limit_bytes == admission.least_bytes == 1000 + ROW
    assert admission.use([]).told_bytes == 0


def test_a_share_that_falls_makes_the_cache_shrink_and_no_row_leave() -> None:
    admission, released = make(1000 + 4 * ROW, held=500)
    assert admission.holds([10] * 3) and not released
    admission.set_limit(1000 + 2 * ROW)
    assert admission.holds([10] * 3) and sum(released) == 500
    assert not admission.fits([10] * 4)
    assert not admission.holds([600, 10, 10]), "one that grows has to make way"
    assert admission.holds([10] * 2), "rows have ended"
    assert not admission.holds([10] * 3), "and their place is given up"


def test_what_waits_is_reported_until_it_fits() -> None:
    admission, _ = make(1000 + 4 * ROW)
    admission.set_limit(1000 + ROW)
    assert admission.holds([10]) and not admission.fits([10, 10])
    use = admission.use([10])
    assert (use.needed_bytes, use.wanted_bytes) == (1000 + ROW, 1000 + 2 * ROW)
    admission.set_limit(1000 + 2 * ROW)
    assert admission.holds([10]) and admission.fits([10, 10])
    use = admission.use([10, 10])
    assert use.needed_bytes == use.wanted_bytes == 1000 + 2 * ROW


def test_a_shortage_under_a_share_is_forgotten_up_to_the_share() -> None:
    admission, _ = make(1000 + 8 * ROW)
    admission.set_limit(1000 + 4 * ROW)
    admission.failed([10] * 4)
    admission.set_limit(1000 + 6 * ROW)
    assert not admission.fits([10] * 3), "a new share does not make it forget"
    for _ in range(30):
        admission.relaxed()
    assert admission.fits([10] * 6) and not admission.fits([10] * 7)


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.lists(st.integers(1, 2000), max_size=4))),
)
def test_a_share_that_changes_makes_no_row_leave_and_is_never_passed(
    turns: list[tuple[int, list[int]]],
) -> None:
    admission, _ = make(1000 + 8 * ROW)
    for share, lengths in turns:
        went_on = admission.holds(lengths)
        admission.set_limit(share)
        assert admission.holds(lengths) or not went_on
        if admission.fits(lengths):
            assert 1000 + admission.rows_bytes(lengths) <= max(share, admission.least_bytes)
        assert admission.fits([1])


def test_a_request_waits_for_the_share_and_goes_on_when_it_grows() -> None:
    rig = LoopRig(cache=Rig(), sizes=SIZES, max_active=4, limit_bytes=1000 + 3 * ROW)
    rig.admission.set_limit(1000 + ROW)
    outcomes = [rig.submit([*LONG, i], 40) for i in range(3)]
    rig.until_stage(outcomes[0], Stage.DECODING)
    assert [rig.stage(o) for o in outcomes[1:]] == [Stage.WAITING] * 2
    rig.admission.set_limit(1000 + 3 * ROW)
    rig.until_stage(outcomes[2], Stage.DECODING)
    assert rig.stage(outcomes[0]) is Stage.DECODING
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)


# ---- M14: a prefill near the ceiling


@pytest.mark.parametrize("chunk", [512, 1024, 2048, 4096, 8192])
def test_m14_steps_are_smaller_near_the_ceiling(chunk: int) -> None:
    admission, _ = make(1000 + 100 + 2 * 512 + 10 * 600)
    for size in (256, 512, 1024):
        admission.stepped(size, 10 * size)
    room = admission.room([10], chunk)
    assert room == min(chunk, 512)
    assert make(10**9)[0].room([10], chunk) == chunk


def test_m14_requests_wait_for_memory_and_all_of_them_end() -> None:
    rig = LoopRig(cache=Rig(), sizes=SIZES, max_active=4, limit_bytes=1000 + 2 * (100 + 1024))
    outcomes = [rig.submit([*LONG, i], 6) for i in range(5)]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert rig.batch.most_rows == 2


def test_m14_a_row_leaves_when_others_need_its_memory() -> None:
    """Three short rows fit; when one has grown over its buffer, another has to go."""
    rig = LoopRig(
        cache=Rig(), sizes=SIZES, max_active=3, chunk=64, limit_bytes=1000 + 3 * (100 + 1024) + 10
    )
    outcomes = [rig.submit([*LONG, i], 300) for i in range(3)]
    rig.until(limit=2000)
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert rig.snapshots[-1].preemptions > 0


def test_m14_an_answer_ends_where_its_memory_does() -> None:
    rig = LoopRig(sizes=SIZES, limit_bytes=1000 + 100 + 2 * 768)
    outcome = rig.submit(LONG, 10_000)
    rig.until(limit=2000)
    assert outcome.reason is FinishReason.LENGTH
    assert isinstance(outcome.last, Finished)
    assert len(LONG) + outcome.last.stats.generated_tokens == 512


class Short:
    """Lets steps of a fake batch fail as an allocation does, while `is_short` of its rows."""

    def __init__(self, batch: FakeBatch) -> None:
        self.batch = batch
        self.step = batch.step
        self.num_failures = 0
        self.most_rows = 0
        self.most_room = 0

    def __call__(self, chosen: object, grain: int, *, starts: bool) -> object:
        if len(self.batch) > self.most_rows or (chosen and grain > self.most_room):
            self.num_failures += 1
            raise RuntimeError("[malloc_or_wait] Unable to allocate 123 bytes.")
        return self.step(chosen, grain, starts=starts)


@pytest.mark.parametrize(("most_rows", "most_room"), [(1, 64), (4, 16), (1, 16), (2, 32)])
def test_m14_a_failed_allocation_makes_steps_smaller_and_rows_fewer(
    most_rows: int, most_room: int
) -> None:
    rig = LoopRig(cache=Rig(), sizes=SIZES, max_active=4, max_waiting=8, chunk=64)
    short = Short(rig.batch)
    short.most_rows, short.most_room = most_rows, most_room
    rig.batch.step = short
    outcomes = [rig.submit([*range(1, 45), i], 6) for i in range(6)]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert 0 < short.num_failures < 20


def test_m14_what_finds_no_memory_even_alone_ends_and_others_go_on() -> None:
    rig = LoopRig(cache=Rig(), sizes=SIZES, max_active=3, chunk=64)
    bad = rig.submit([*range(1, 45)], 6)

    def step(chosen: object, grain: int, *, starts: bool) -> object:
        if bad.request.id in rig.batch._rows:
            raise MemoryError
        return inner(chosen, grain, starts=starts)

    inner, rig.batch.step = rig.batch.step, step
    others = [rig.submit([*range(2, 40), i], 6, request_class=RequestClass.BATCH) for i in (1, 2)]
    rig.until()
    assert bad.code is FailureCode.ENGINE
    assert "no memory" in bad.last.message
    for outcome in others:
        assert_as_solo(outcome)
    again = rig.submit([7] * 40, 3)
    rig.until()
    assert_as_solo(again)
    assert rig.stage(again) is None and max(again.tokens) < NUM_VOCAB


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MemoryError(), True),
        (RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory"), True),
        (RuntimeError("cudaMallocAsync failed"), True),
        (RuntimeError("[malloc] Unable to allocate 17 bytes."), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("x"), False),
    ],
)
def test_m14_which_errors_are_a_shortage(error: Exception, *, found: bool) -> None:
    assert is_shortage(error) is found


def test_waiting_for_memory_is_the_queue() -> None:
    rig = LoopRig(cache=Rig(), sizes=SIZES, max_active=4, limit_bytes=1000 + 100 + 1024)
    first, second = rig.submit(LONG, 4), rig.submit([*LONG, 3], 4)
    rig.until_stage(first, Stage.DECODING)
    assert rig.stage(second) is Stage.WAITING
    rig.until()
