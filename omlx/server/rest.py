"""What the server's process does when it has worked and then rests: give memory back.

Knows nothing about requests. To encode a prompt of a megabyte takes a hundred, which glibc keeps.
"""

import asyncio
import time
from collections.abc import Callable

_POLL_S = 5.0
_REST_S = 0.25  # of CPU time between two looks at most
_WORK_S = 0.3  # of CPU time before that at least


async def give_back_at_rest(
    trim: Callable[[], bool],
    *,
    cpu_s: Callable[[], float] = time.process_time,
    poll_s: float = _POLL_S,
) -> None:
    """Call `trim`, on another thread, each time that the process rests after some work."""
    trimmed = before = cpu_s()
    while True:
        await asyncio.sleep(poll_s)
        now = cpu_s()
        if now - before <= _REST_S and before - trimmed >= _WORK_S:
            await asyncio.to_thread(trim)
            now = trimmed = cpu_s()
        before = now
