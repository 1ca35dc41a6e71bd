"""Memory is given back when the server rests after work, and not at other times."""

import asyncio

import pytest

from omlx.server.rest import give_back_at_rest


@pytest.mark.parametrize(
    ("spent", "expected"),
    [
        ([0.0, 0.0, 0.0], 0),  # it has done nothing
        ([0.2, 0.0, 0.0], 0),  # hardly anything
        ([1.5, 0.0, 0.0, 0.0], 1),  # once for each time
        ([0.4, 0.4, 0.4, 0.1, 0.1], 1),
        ([3.0, 3.0, 0.3, 0.4], 0),  # it never rests
        ([2.0, 0.0, 0.2, 0.0, 2.0, 0.0], 2),
    ],
)
def test_memory_is_given_back_at_rest(spent: list[float], expected: int) -> None:
    looks = iter([sum(spent[:i]) for i in range(len(spent) + 1)])
    over = asyncio.Event()
    now, num_trims, has_just_trimmed = 0.0, 0, False

    def trim() -> bool:
        nonlocal num_trims, has_just_trimmed
        num_trims, has_just_trimmed = num_trims + 1, True
        return True

    def cpu_s() -> float:
        nonlocal now, has_just_trimmed
        if has_just_trimmed:  # which takes no time
            has_just_trimmed = False
            return now
        now = next(looks, now + 1.0)
        if now > sum(spent):
            over.set()
        return now

    async def run() -> None:
        task = asyncio.create_task(give_back_at_rest(trim, cpu_s=cpu_s, poll_s=0.0))
        await over.wait()
        task.cancel()

    asyncio.run(run())
    assert num_trims == expected
