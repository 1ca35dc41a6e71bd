"""How large a prefill step is: measured, on grids of powers of two, and never too small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.pacer import Pacer


def measured(token_s: float, decode_s: float, *, chunk: int = 2048, gap_s: float = 0.25) -> Pacer:
    """A pacer on a machine that takes so long for a prompt token and for a decode step."""
    pacer = Pacer(chunk, gap_s)
    for _ in range(40):
        pacer.stepped(decode_s, 0, 4)
        room = pacer.room(4)
        pacer.stepped(room * token_s + decode_s, room, 4)
    return pacer


def test_all_of_a_chunk_where_nobody_waits_for_a_token() -> None:
    pacer = measured(0.1, 0.1)
    assert pacer.room(0) == 2048


@pytest.mark.parametrize(
    ("token_s", "decode_s", "room"),
    [
        (0.0001, 0.05, 1024),  # of 250 ms seven tenths are planned, 125 ms beside the decode
        (0.0002, 0.05, 512),
        (0.001, 0.05, 64),
        (0.005, 0.05, 16),
        (1.0, 0.05, 16),  # this machine can't
        (0.001, 0.4, 256),  # half of the time is the prefill's
        (0.000001, 0.01, 2048),
    ],
)
def test_the_gap_is_kept_as_far_as_the_machine_can(
    token_s: float, decode_s: float, room: int
) -> None:
    assert measured(token_s, decode_s).room(4) == room


def test_before_anything_is_measured_a_part_of_a_chunk() -> None:
    assert Pacer(2048, 0.25).room(1) == 512
    assert Pacer(20, 0.25).room(1) == 20


@given(
    chunk=st.integers(16, 4096),
    token_s=st.floats(1e-7, 1.0),
    decode_s=st.floats(1e-4, 2.0),
    gap_s=st.floats(0.01, 5.0),
)
def test_rooms_are_a_chunk_over_a_power_of_two(
    chunk: int, token_s: float, decode_s: float, gap_s: float
) -> None:
    pacer = measured(token_s, decode_s, chunk=chunk, gap_s=gap_s)
    room = pacer.room(3)
    assert room in [chunk >> k for k in range(13)] and room >= 16
    could_be_less = room // 2 >= 16
    allowed = max(0.7 * gap_s - decode_s, decode_s)
    assert not could_be_less or room * token_s <= allowed * 1.001
    if room < chunk and room * 2 * token_s < allowed * 0.9:
        pytest.fail("a larger piece would have kept the gap")


def test_one_slow_step_is_forgotten() -> None:
    pacer = measured(0.0001, 0.05)
    before = pacer.room(4)
    pacer.stepped(5.0, before, 4)
    assert pacer.room(4) < before
    for _ in range(40):
        room = pacer.room(4)
        pacer.stepped(room * 0.0001 + 0.05, room, 4)
    assert pacer.room(4) == before


def test_a_step_without_memory_makes_smaller_ones_for_a_while() -> None:
    pacer = Pacer(256, 0.25)
    assert [pacer.shrink(pacer.room(0)) for _ in range(6)] == [True] * 4 + [False] * 2
    assert pacer.room(0) == 16
    for _ in range(32):
        pacer.stepped(0.1, 16, 0)
    assert pacer.room(0) == 32
    for _ in range(200):
        pacer.stepped(0.1, 16, 0)
    assert pacer.room(0) == 256, "nothing latches"


def test_what_fits_into_a_time_without_decoding() -> None:
    pacer = Pacer(256, 0.25)
    assert pacer.within(100.0) == 0 and pacer.cost_s(10) is None, "nothing is known yet"
    pacer.stepped(1.28, 128, 0)
    assert pacer.cost_s(40) == pytest.approx(0.4)
    assert [pacer.within(s) for s in (9.0, 1.3, 0.65, 0.16, 0.15)] == [256, 128, 64, 16, 0]
    assert pacer.shrink(64)
    assert pacer.within(9.0) == 32, "no more than memory allows"


def test_a_piece_of_a_token_is_not_the_price_of_a_token() -> None:
    """A forward of one token costs nearly what one of sixteen does."""
    pacer = measured(0.005, 0.05, chunk=256)
    before = pacer.cost_s(100)
    pacer.stepped(0.05 + 0.08, 1, 4)
    assert pacer.cost_s(100) == before or pacer.cost_s(100) == pytest.approx(before, rel=0.3)
