"""One row's prompt on layer caches of its own, computed piece by piece.

Knows nothing about batches, blocks or stop conditions. Engine thread only.

A lone row needs no padding, so its attention takes the library's causal path; a batch's explicit
mask costs four times as much on CUDA. A piece is launched before its predecessor is waited for, so
that the device works while the host builds the next graph and stores blocks; but only where what
a later piece does to the state leaves what has to be stored in it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import utils
from mlx_lm.models.cache import make_prompt_cache

_mx: Any = mx  # for calls that its stubs leave untyped
_utils: Any = utils
_AHEAD = 2  # pieces in flight


class Prefill:
    """The state of one prompt; `prefix` tokens are in `caches` already."""

    def __init__(
        self,
        model: Any,
        prefix: Sequence[int],
        pieces: Sequence[Sequence[int]],
        caches: list[Any] | None,
        *,
        is_ahead: bool = True,
    ) -> None:
        self._model = model
        self._most = _AHEAD if is_ahead else 1
        self._pieces = deque(pieces)
        self._running: deque[tuple[int, mx.array]] = deque()
        self.caches: list[Any] = make_prompt_cache(model) if caches is None else caches
        self.prefix = list(prefix)
        self.launched: list[int] = []

    @property
    def num_done(self) -> int:
        """How many tokens of the pieces are computed."""
        return len(self.launched) - sum(size for size, _ in self._running)

    @property
    def num_cached(self) -> int:
        """How many tokens the computed state covers."""
        return len(self.prefix) + self.num_done

    @property
    def num_left(self) -> int:
        """How many tokens no piece was launched for yet."""
        return sum(map(len, self._pieces))

    @property
    def next_size(self) -> int:
        """How many tokens the next piece has; 0 if none can be launched now."""
        return len(self._pieces[0]) if self._pieces and len(self._running) < self._most else 0

    @property
    def is_finished(self) -> bool:
        """Whether every piece is computed."""
        return not self._pieces and not self._running

    def launch(self, grain: int) -> None:
        """Begin to compute the next piece, of a longer one what `piece_size` says; returns before
        it is done."""
        piece = self._pieces.popleft()
        size = piece_size(len(piece), len(self.prefix) + len(self.launched), grain)
        piece, rest = piece[:size], piece[size:]
        if rest:
            self._pieces.appendleft(rest)
        self._model(mx.array([list(piece)]), cache=self.caches)
        states = [cache.state for cache in self.caches]
        mark = _mark(states)
        _mx.async_eval(states, mark)
        self.launched.extend(piece)
        self._running.append((len(piece), mark))

    def wait(self) -> int:
        """Wait for the oldest piece, if another follows it or it is the last one; its number of
        tokens, 0 without one."""
        if not self._running or (self._pieces and len(self._running) < self._most):
            return 0
        size, mark = self._running.popleft()
        _mx.eval(mark)
        return size

    def settle(self) -> None:
        """Wait for all pieces in flight (mutates)."""
        while self._running:
            _mx.eval(self._running.popleft()[1])


def piece_size(num_tokens: int, start: int, grain: int) -> int:
    """How many of a piece's tokens, from place `start` on, are computed at once: all of as many as
    `grain`; of more what ends on its grid, half a grain more rather than less than half of one."""
    if num_tokens <= grain:
        return num_tokens
    size = grain - start % grain
    size += grain if size < grain // 2 else 0
    return min(size, num_tokens)


def _mark(states: list[Any]) -> mx.array:
    """A number that is computed after the states, to wait for. To hold the states themselves would
    keep the next piece from writing into their buffers: it would copy all tokens before it."""
    leaves = [
        leaf for _, leaf in _utils.tree_flatten(states) if isinstance(leaf, mx.array) and leaf.size
    ]
    last = leaves[-1]
    return mx.sum(last[(slice(0, 1),) * last.ndim])
