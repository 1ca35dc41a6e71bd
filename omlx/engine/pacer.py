"""How many prompt tokens a step may compute, so that running streams keep their rhythm.

Knows nothing about requests, batches or mlx; it is told how long steps took.
"""

_FIRST_SHARE = 4  # before anything is measured, beside rows that decode: one part of a chunk
_LEAST = 16  # tokens; smaller pieces cost about as much
_RISE, _FALL = 0.5, 0.2  # weight of the newest cost where it is higher, and where it is lower
_TRUST = 32  # steps that found memory, until a larger one is tried again
_AIM = 0.7  # of the longest gap is what a step is planned to take: some take longer than the last
_LEAST_PART = 0.25  # of a step's time is the prefill's, whatever decoding seems to cost


class Pacer:
    """Measures what prefill and decode cost; engine thread only.

    A step's prompt tokens are a chunk divided by a power of two, so that pieces end on fixed grids.
    """

    def __init__(self, chunk: int, max_gap_s: float) -> None:
        self._chunk = chunk
        self._max_gap_s = max_gap_s
        self._decode_s = 0.0
        self._token_s = 0.0
        self._most = chunk
        self._num_since = 0

    def cost_s(self, num_tokens: int) -> float | None:
        """How long so many prompt tokens take lately; None while that is not known."""
        return num_tokens * self._token_s if self._token_s else None

    def within(self, seconds: float) -> int:
        """Prompt tokens of a step without decoding that ends within so long; 0 where none does, or
        where their cost is not known."""
        num_tokens = int(seconds / self._token_s) if self._token_s else 0
        return min(self._grain(num_tokens), self._most) if num_tokens >= _LEAST else 0

    def room(self, num_decoding: int) -> int:
        """Prompt tokens of the next step: all of a chunk when no row decodes; otherwise what keeps
        the gap under its limit, but at least half of the time."""
        if not num_decoding:
            return self._most
        if not self._token_s:
            return self._grain(self._chunk // _FIRST_SHARE)
        seconds = max(_AIM * self._max_gap_s - self._decode_s, self._decode_s)
        return min(self._grain(int(seconds / self._token_s)), self._most)

    def shrink(self, room: int) -> bool:
        """A step of so many prompt tokens found no memory: compute at most half as many for a
        while; False if that can't be (mutates)."""
        before, self._most = self._most, self._grain(room // 2)
        self._num_since = 0
        return self._most < before

    def _grain(self, num_tokens: int) -> int:
        grains = grains_of(self._chunk)
        return next((grain for grain in grains if grain <= num_tokens), grains[-1])

    def stepped(self, seconds: float, num_prefilled: int, num_decoded: int) -> None:
        """A step computed so many prompt tokens, and one for each of so many rows (mutates)."""
        if num_prefilled:
            self._num_since += 1
            if self._num_since >= _TRUST and self._most < self._chunk:
                self._num_since, self._most = 0, min(2 * self._most, self._chunk)
            decode_s = self._decode_s if num_decoded else 0.0
            spent_s = max(seconds - decode_s, seconds * _LEAST_PART)
            cost = spent_s / max(num_prefilled, _LEAST)
            self._token_s = _follow(self._token_s, cost)
        elif num_decoded:
            self._decode_s = _follow(self._decode_s, seconds)


def grains_of(chunk: int) -> list[int]:
    """The numbers of prompt tokens that a step may have, the largest first."""
    grains = [chunk]
    while grains[-1] // 2 >= _LEAST:
        grains.append(grains[-1] // 2)
    return grains


def _follow(value: float, newest: float) -> float:
    if not value:
        return newest
    return value + (newest - value) * (_RISE if newest > value else _FALL)
