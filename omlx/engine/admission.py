"""Whether the state of requests fits in memory: arithmetic on predicted bytes.

Knows nothing about mlx, batches, or where the limit comes from. Nothing here latches: the same
requests get the same answer, and what a failed allocation taught is forgotten step by step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlx.engine.request import MemoryUse
from omlx.units import format_size

_STEP = 256  # tokens by which the buffers of keys and values grow
_LEAST_ROOM = 16  # prompt tokens of a step; fewer need as much
_DECAY = 0.05  # weight of a smaller peak; a larger one counts at once
_SHORTAGES = ("allocate", "out of memory", "insufficient memory", "outofmemory", "cudamalloc")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a model: its weights, what a row needs for each token, and what it needs at all;
    `twice` is the part of a row's state that is there twice while the row joins a batch."""

    weights: int = 0
    token: int = 0
    row: int = 0
    twice: float = 0.0


def nothing_held() -> int:
    """The bytes of a model without a cache."""
    return 0


def nothing_released(num_bytes: int) -> None:
    """What a model without a cache gives back."""


def nothing_cleared() -> None:
    """Where no freed buffers are kept."""


class Admission:
    """Predicts what rows need; engine thread only."""

    def __init__(
        self,
        sizes: Sizes,
        limit_bytes: int,
        *,
        held: Callable[[], int] = nothing_held,
        release: Callable[[int], None] = nothing_released,
        clear: Callable[[], object] = nothing_cleared,
    ) -> None:
        """`held` says what the cache holds in memory, `release` gives so many bytes of it back,
        `clear` the buffers that are free already."""
        self._sizes = sizes
        self._limit = limit_bytes
        self._limit_now = self._share = limit_bytes
        self._told: int | None = None
        self._granted = 0  # what rows in work may need beyond their share, since they had it before
        self._has_fallen = False
        self._wanted = 0
        self._held = held
        self._release = release
        self._clear = clear
        self._peaks: dict[int, tuple[float, int]] = {}

    @property
    def least_bytes(self) -> int:
        """What the model needs with one short row; no measurement changes it."""
        return self._sizes.weights + self.rows_bytes([1])

    def set_limit(self, share_bytes: int) -> None:
        """Use at most so much of the limit, or the least if that is more: other engines need the
        rest. Rows in work may go on; what can never fit stays the same (mutates)."""
        self._told = share_bytes
        share = min(self._limit, max(share_bytes, self.least_bytes))
        self._has_fallen = self._has_fallen or share < self._share
        has_failed = self._limit_now < self._share
        self._limit_now = min(self._limit_now, share) if has_failed else share
        self._share = share

    def use(self, lengths: Sequence[int]) -> MemoryUse:
        """What there is with rows of so many tokens, as it is predicted."""
        needed = self._need(lengths, _LEAST_ROOM)
        return MemoryUse(
            limit_bytes=self._share,
            least_bytes=self.least_bytes,
            needed_bytes=needed,
            wanted_bytes=max(needed, self._wanted),
            cache_bytes=self._held(),
            told_bytes=self._told,
        )

    def rows_bytes(self, lengths: Sequence[int]) -> int:
        """What rows with so many tokens need: a batch is padded to its longest."""
        if not lengths:
            return 0
        longest = max(lengths) + _STEP
        longest += -longest % _STEP
        one = self._sizes.row + self._sizes.token * longest
        # The server counts the shortest row before there is an engine, and knows of no joining.
        joining = self._sizes.token * (longest - 2 * _STEP)
        return len(lengths) * one + int(self._sizes.twice * joining)

    def _need(self, lengths: Sequence[int], room: int) -> int:
        return self._sizes.weights + self.rows_bytes(lengths) + self._scratch(room)

    def _scratch(self, room: int) -> int:
        """What a step of so many prompt tokens needs beside the state, as far as it was seen."""
        if not self._peaks:
            return 0
        smaller = [size for size in self._peaks if size <= room] or [min(self._peaks)]
        return int(max(self._peaks[size][0] * room / size for size in smaller))

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether rows of so many tokens can be in work together; the cache makes way for them
        (mutates)."""
        need = self._need(lengths, _LEAST_ROOM)
        if need > self._limit_now:
            self._wanted = need
            return False
        self._make_way(need)
        return True

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether rows in work of so many tokens can go on; the cache makes way for them. A limit
        that falls makes no row leave that was there before (mutates)."""
        need = self._need(lengths, _LEAST_ROOM)
        if self._has_fallen:
            self._granted = need
        self._has_fallen, self._wanted = False, 0
        if need <= self._limit_now:
            self._granted = 0
        self._make_way(need)
        return need <= max(self._limit_now, self._granted)

    def drop_cache(self) -> None:
        """Have the cache give back all that it holds in memory."""
        self._release(self._held())

    def _make_way(self, need: int) -> None:
        held = self._held()  # and leave room for one short row in any case, as others count on it
        excess = min(held, max(need, self.least_bytes) + held - self._limit_now)
        if excess > 0:
            self._release(excess)

    def room(self, lengths: Sequence[int], room: int) -> int:
        """How many prompt tokens of `room` a step can compute beside rows of so many tokens."""
        while room // 2 >= _LEAST_ROOM and (
            self._is_unknown(room) or self._need(lengths, room) > self._limit_now
        ):
            room //= 2
        return room

    def _is_unknown(self, room: int) -> bool:
        """Whether a step is more than twice as large as any that was measured: of it the small
        ones tell nothing."""
        return bool(self._peaks) and room > 2 * max(self._peaks)

    @property
    def most_tokens(self) -> int | None:
        """How many tokens one row alone may have, prompt and answer; None without a limit."""
        if not self._sizes.token:
            return None
        left = int((self._limit - self._sizes.weights) / (1 + self._sizes.twice)) - self._sizes.row
        return max(0, left // self._sizes.token // _STEP * _STEP - _STEP)

    def refusal(self, num_tokens: int) -> str:
        """Why a prompt of so many tokens can never run; empty if it can."""
        most = self.most_tokens
        if most is None or num_tokens < most:
            return ""
        state = format_size(self.rows_bytes([num_tokens]))
        weights, limit = format_size(self._sizes.weights), format_size(self._limit)
        return (
            f"the prompt of {num_tokens} tokens needs {state} of memory for its state; the model "
            f"takes {weights} of the limit of {limit}. At most {most} tokens fit; a larger "
            f"`engine.memory_limit` allows more"
        )

    def stepped(self, room: int, peak_bytes: int, length: int = 0) -> None:
        """A step of so many prompt tokens, in a row that has `length` now, needed so much more than
        was held before (mutates)."""
        if not room:
            return
        known, longest = self._peaks.get(room, (0.0, 0))
        if peak_bytes > known:
            self._peaks[room] = (peak_bytes, max(longest, length))
        elif length >= longest:  # a shorter row needs less, and tells nothing of longer ones
            self._peaks[room] = (known + (peak_bytes - known) * _DECAY, longest)

    def failed(self, lengths: Sequence[int]) -> None:
        """There was not enough memory for rows of so many tokens: half as much counts as the limit
        until rows have finished, and freed buffers go back (mutates)."""
        self._clear()
        self._limit_now = min(self._limit_now, self._sizes.weights + self.rows_bytes(lengths) // 2)

    def relaxed(self) -> None:
        """A row has finished: trust half as much more of the limit again (mutates)."""
        more = max(0, self._limit_now - self._sizes.weights) // 2 + 1
        self._limit_now = min(self._share, self._limit_now + more)


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(word in text for word in _SHORTAGES)
