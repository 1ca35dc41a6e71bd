"""The last turns by their end, for curves over time: TTFT, and what of each prompt was cached.

Knows nothing about who draws them. Any thread may use it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from omlx.server.session import Course

_NUM_KEPT = 240


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that left the queue and is over; `time` is its end, in seconds since 1970."""

    time: float
    model: str
    client: str
    ttft_s: float | None
    prompt_tokens: int
    cached_tokens: int


class Turns:
    """The last of them, in memory."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._turns: deque[Turn] = deque(maxlen=_NUM_KEPT)

    def closed(self, course: Course) -> None:
        """A request is over (mutates)."""
        if course.admitted is None:
            return
        first = course.first_token
        self._turns.append(
            Turn(
                self._wall(),
                course.model_id,
                course.caller.client,
                None if first is None else first - course.arrived,
                course.usage.prompt,
                course.usage.cached,
            )
        )

    def shown(self) -> list[dict[str, object]]:
        """As plain values, the newest last."""
        return [asdict(turn) for turn in list(self._turns)]
