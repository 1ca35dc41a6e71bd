"""One row's prompt on layer caches of its own, computed piece by piece.

Knows nothing about batches, blocks or stop conditions. Engine thread only.

A lone row needs no padding, so its attention takes the library's causal path; a batch's explicit
mask costs four times as much on CUDA. A piece is launched before its predecessor's results are
used, so that the device works while the host stores blocks and builds the next graph.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

_mx: Any = mx  # for calls that its stubs leave untyped
_KEPT_BYTES = 2 << 30  # freed buffers that the allocator may keep for reuse


class Prefill:
    """The state of one prompt; `prefix` tokens are in `caches` already."""

    def __init__(
        self,
        model: Any,
        prefix: Sequence[int],
        pieces: Sequence[Sequence[int]],
        caches: list[Any] | None,
    ) -> None:
        self._model = model
        self._pieces = deque(pieces)
        self._running = 0
        self.caches: list[Any] = make_prompt_cache(model) if caches is None else caches
        self.prefix = list(prefix)
        self.done: list[int] = []

    @property
    def num_cached(self) -> int:
        """How many tokens the computed state covers."""
        return len(self.prefix) + len(self.done) - self._running

    @property
    def next_size(self) -> int:
        """How many tokens the next piece has; 0 if all are launched."""
        return len(self._pieces[0]) if self._pieces else 0

    @property
    def is_finished(self) -> bool:
        """Whether every piece is computed."""
        return not self._pieces and not self._running

    def launch(self) -> None:
        """Begin to compute the next piece; returns before it is done."""
        piece = self._pieces.popleft()
        self._model(mx.array([list(piece)]), cache=self.caches)
        _mx.async_eval([cache.state for cache in self.caches])
        self.done.extend(piece)
        self._running = len(piece)

    def wait(self) -> int:
        """Wait for the piece that was launched; its number of tokens, 0 without one."""
        if not self._running:
            return 0
        _mx.eval([cache.state for cache in self.caches])
        finished, self._running = self._running, 0
        if mx.get_cache_memory() > _KEPT_BYTES:
            mx.clear_cache()
        return finished
