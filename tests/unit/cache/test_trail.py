"""Where a sequence leaves what is stored, in memory and on disk."""

from omlx.cache.trail import Trail
from tests.fakes.cache import BLOCK, Rig

LONG = list(range(1, 3 * BLOCK + 3))


def trail_of(rig: Rig, tokens: list[int]) -> Trail:
    trail = rig.look_up(tokens).trail
    assert trail is not None
    return trail


def rigs() -> list[Rig]:
    """A cache that holds LONG, in memory and only on disk."""
    found: list[Rig] = []
    for is_restarted in (False, True):
        rig = Rig()
        rig.compute(LONG)
        if is_restarted:
            rig.restart()
        found.append(rig)
    return found


def test_nothing_is_stored() -> None:
    trail = trail_of(Rig(), LONG)
    assert (trail.shared, trail.nearest, len(trail.names)) == (0, None, 3)


def test_the_same_sequence_and_more_of_it_leave_nothing_behind() -> None:
    for rig in rigs():
        assert trail_of(rig, LONG).shared == len(LONG) - 1
        assert trail_of(rig, LONG).nearest is None
        longer = trail_of(rig, [*LONG, 90, 91, 92])
        assert (longer.shared, longer.nearest) == (len(LONG), None)


def test_a_token_that_differs_within_a_block() -> None:
    for rig in rigs():
        whole = trail_of(rig, LONG)
        trail = trail_of(rig, [*LONG[: BLOCK + 1], 99, *LONG[BLOCK + 2 :]])
        assert (trail.shared, trail.nearest) == (BLOCK + 1, whole.names[1])
        assert trail.names[0] == whole.names[0] and trail.names[1] != whole.names[1]


def test_a_token_that_differs_at_the_edge_of_a_block() -> None:
    for rig in rigs():
        whole = trail_of(rig, LONG)
        trail = trail_of(rig, [*LONG[:BLOCK], 99, *LONG[BLOCK + 1 :]])
        assert (trail.shared, trail.nearest) == (BLOCK, whole.names[1])


def test_a_token_that_differs_in_the_tail() -> None:
    for rig in rigs():
        whole = trail_of(rig, [*LONG, 90])
        trail = trail_of(rig, [*LONG[:-1], 99, 100, 101])
        assert trail.shared == len(LONG) - 1
        assert trail.nearest == whole.rest


def test_a_sequence_that_ends_early_meets_no_other() -> None:
    for rig in rigs():
        trail = trail_of(rig, LONG[: BLOCK + 2])
        assert (trail.shared, trail.nearest) == (BLOCK + 1, None)


def test_one_token_has_no_rest() -> None:
    trail = trail_of(Rig(), [5])
    assert (trail.names, trail.rest, trail.shared) == ((), None, 0)
