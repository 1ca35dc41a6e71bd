"""Which models leave so that another can be loaded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.engine.room import Resident, Room, RoomLimits, Verdict, make_room


def one(name: str, used_at: float, **facts: bool) -> Resident:
    return Resident(name, 10, used_at, **facts)


def test_without_limits_all_are_loaded() -> None:
    residents = [one(str(i), i) for i in range(50)]
    assert make_room("new", 10**12, residents, RoomLimits()) == Room(Verdict.LOAD)


def test_the_least_recently_used_leaves() -> None:
    residents = [one("a", 3), one("b", 1), one("c", 2)]
    assert make_room("new", 10, residents, RoomLimits(3)) == Room(Verdict.WAIT, ("b",))
    assert make_room("new", 15, residents, RoomLimits(None, 30)) == Room(Verdict.WAIT, ("b", "c"))
    assert make_room("new", 15, residents, RoomLimits(None, 45)) == Room(Verdict.LOAD)


def test_those_in_use_leave_only_if_they_must_and_later() -> None:
    residents = [one("busy", 1, is_busy=True), one("idle", 2), one("pinned", 0, is_pinned=True)]
    assert make_room("new", 10, residents, RoomLimits(3)) == Room(Verdict.WAIT, ("idle",))
    assert make_room("new", 20, residents, RoomLimits(None, 30)) == Room(
        Verdict.WAIT, ("idle",), ("busy",)
    )


def test_one_that_leaves_still_takes_room_and_nobody_else_has_to_go() -> None:
    residents = [one("a", 1, is_leaving=True), one("b", 2)]
    assert make_room("new", 10, residents, RoomLimits(2)) == Room(Verdict.WAIT)


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    room = make_room("new", 50, [one("a", 1)], RoomLimits(None, 40))
    assert room.verdict is Verdict.REFUSE
    assert "its weights take 50 B" in room.reason and "40 B of weights" in room.reason
    assert "engine.memory_limit" in room.reason
    room = make_room("new", 10, [one("a", 1, is_pinned=True)], RoomLimits(1, 100))
    assert room.verdict is Verdict.REFUSE
    assert "models.max_loaded = 1" in room.reason and "pinned models (a)" in room.reason


@st.composite
def houses(draw: st.DrawFn) -> list[Resident]:
    number = draw(st.integers(0, 6))
    return [
        Resident(
            f"m{i}",
            draw(st.integers(0, 50)),
            draw(st.integers(0, 9)),
            is_pinned=draw(st.booleans()),
            is_busy=draw(st.booleans()),
            is_leaving=draw(st.booleans()),
        )
        for i in range(number)
    ]


limits = st.builds(RoomLimits, st.none() | st.integers(1, 6), st.none() | st.integers(0, 150))


@settings(max_examples=500, deadline=None, database=None)
@given(houses(), st.integers(0, 60), limits)
def test_properties(residents: list[Resident], size: int, limits: RoomLimits) -> None:
    """Who follows the advice gets in, nobody pinned leaves, and what is there never is too much."""
    by_id = {r.model_id: r for r in residents}
    room = make_room("new", size, residents, limits)
    leave = {*room.leave_now, *room.leave_later}
    assert len(leave) == len(room.leave_now) + len(room.leave_later)
    assert all(not by_id[i].is_pinned and not by_id[i].is_leaving for i in leave)
    assert all(not by_id[i].is_busy for i in room.leave_now)
    assert all(by_id[i].is_busy for i in room.leave_later)
    stay = [r for r in residents if not r.is_leaving and r.model_id not in leave]
    if room.verdict is Verdict.LOAD:
        stay = residents
    if room.verdict is Verdict.REFUSE:
        stay = [r for r in residents if r.is_pinned and not r.is_leaving]
    fits = limits.allow(len(stay) + 1, sum(r.weight_bytes for r in stay) + size)
    assert fits == (room.verdict is not Verdict.REFUSE)
