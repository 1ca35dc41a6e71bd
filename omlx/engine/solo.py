"""Rows one after the other, for a model whose layer caches can't be merged into a batch.

Knows nothing about the prefix cache, the scheduler or text. Engine thread only.
"""

from collections.abc import Collection
from typing import Any, cast

import mlx.core as mx

from omlx.engine.batch import RowInput, RowProgress, RowToken, Stop, pieces
from omlx.engine.prefill import Prefill
from omlx.engine.sampling import NOT_FINITE
from omlx.engine.shaping import noted, shaped

_mx: Any = mx  # for calls that its stubs leave untyped


class SoloBatch:
    """The interface of a Batch: the oldest row runs until it is over, the others wait."""

    def __init__(self, model: Any, *, prefill_chunk: int) -> None:
        self._model = model
        self._prefill_chunk = prefill_chunk
        self._rows: dict[str, _SoloRow] = {}
        self._wired_bytes = _wire()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def row_ids(self) -> Collection[str]:
        """The rows that are in work or wait for it."""
        return self._rows.keys()

    def insert(self, row: RowInput) -> None:
        """Add a row; it runs after those that came before."""
        cut = pieces(row, self._prefill_chunk)
        prefill = Prefill(self._model, row.prefix, cut, row.caches)
        self._rows[row.row_id] = _SoloRow(self._model, row, prefill)

    def remove(self, row_id: str) -> None:
        """Take a row out at once; unknown rows pass."""
        self._rows.pop(row_id, None)

    @property
    def done_ids(self) -> list[str]:
        """None: a row never waits for another one's prompt, which can't be computed before it."""
        return []

    def step(
        self,
        chosen: Collection[str] | None = None,
        grain: int | None = None,
        *,
        starts: bool = True,
    ) -> tuple[list[RowProgress], list[RowToken]]:
        """Prefill one piece of the oldest row, or decode one token of it; `chosen` and `grain`
        as in Batch.

        A finished row is gone afterwards.
        """
        row_id, row = next(iter(self._rows.items()))
        if not row.is_decoding:
            may_launch = chosen is None or row_id in chosen
            return row.prefill(grain or self._prefill_chunk, may_launch=may_launch), []
        token = row.decode()
        if token.finish is not None:
            self.remove(row_id)
        return [], [token]

    def settle(self, row_id: str) -> None:
        """Wait for what is launched of a row's prompt; only for a row that is about to leave."""
        self._rows[row_id].settle()

    def num_left(self, row_id: str) -> int:
        """How many tokens of a prompt no step has begun to compute, its last one aside."""
        row = self._rows.get(row_id)
        return row.num_left if row is not None else 0

    def take_next(self, row_id: str) -> RowToken | None:
        """Take a row out; its next token is computed again when it comes back."""
        self.remove(row_id)
        return None

    def num_cached(self, row_id: str) -> int:
        """How many tokens the row's state covers; 0 for a row that no step has reached yet."""
        return self._rows[row_id].num_cached

    def caches(self, row_id: str) -> list[Any]:
        """The row's own layer caches: don't change them."""
        return self._rows[row_id].caches

    def reset(self) -> None:
        """Drop every row, after a step has raised."""
        self._rows.clear()

    def close(self) -> None:
        """Give back the memory that was wired."""
        if self._wired_bytes is not None:
            mx.synchronize()
            mx.set_wired_limit(self._wired_bytes)
            self._wired_bytes = None


class _SoloRow:
    """One row: a prefill, then one call of the model a token, launched before the last is read."""

    def __init__(self, model: Any, row: RowInput, prefill: Prefill) -> None:
        self._model = model
        self._input = row
        self._total = sum(len(s) for s in row.segments)
        self._prefill = prefill
        self._matcher = Stop(row.stop, row.emitted).matcher()
        self._next: mx.array | None = None  # the token that is being computed, of shape [1]
        self._seen = mx.array([], dtype=mx.int32)
        self._num_decoded = 0

    @property
    def is_decoding(self) -> bool:
        return self._next is not None

    @property
    def caches(self) -> list[Any]:
        return self._prefill.caches

    def settle(self) -> None:
        """Wait for the pieces in flight (mutates)."""
        self._prefill.settle()

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt, with its last one once it is launched, and those decoded."""
        return self._prefill.num_cached + self.is_decoding + self._num_decoded

    @property
    def num_left(self) -> int:
        """Tokens of the prompt that no piece was launched for yet."""
        return self._prefill.num_left

    def prefill(self, grain: int, *, may_launch: bool) -> list[RowProgress]:
        """Launch what may run, take up what was launched before; at the end start to decode."""
        prefill, row_id = self._prefill, self._input.row_id
        if prefill.is_finished:
            self._start_decoding()
            return [RowProgress(row_id, self._total, self._total, self.num_cached, 1)]
        if prefill.next_size and may_launch:
            prefill.launch(grain)
        finished = prefill.wait()
        if not finished:
            return []
        covers = prefill.num_cached
        return [RowProgress(row_id, prefill.num_done, self._total, covers, finished)]

    def _start_decoding(self) -> None:
        if self._input.sampling.processors:
            self._seen = mx.array([*self._prefill.prefix, *self._prefill.launched], dtype=mx.int32)
        self._next = self._launch(mx.array(list(self._input.segments[-1])))

    def _launch(self, token: mx.array) -> mx.array:
        """Begin to compute the token that follows `token`."""
        sampling = self._input.sampling
        logits = shaped(self._model, token[None], self.caches, [sampling.shape])
        logits = logits[:, -1, :]
        if sampling.processors:
            self._seen = mx.concatenate([self._seen, token])
            for process in sampling.processors:
                logits = process(self._seen, logits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        sampled = sampling.sampler(logprobs)
        _mx.async_eval(sampled)
        return sampled

    def decode(self) -> RowToken:
        """Launch the next step, then read the token of the last one."""
        assert self._next is not None
        current, self._next = self._next, self._launch(self._next)
        token = cast(int, current.item())
        self._num_decoded += 1
        finish = self._finish(token)
        final = self.caches if finish in ("stop", "length") else None
        logprob, top = noted(self._input.sampling.shape)
        row_id, num_cached = self._input.row_id, self.num_cached
        return RowToken(row_id, token, finish, final, num_cached, logprob, top)

    def _finish(self, token: int) -> str | None:
        if token == NOT_FINITE:
            self._input.sampling.blame()
            return "fault"
        if self._matcher.advance(token):
            return "stop"
        return "length" if self._num_decoded >= self._input.max_tokens else None


def _wire() -> int | None:
    """Let the model stay in the GPU's memory, as BatchGenerator does; the limit before, if any."""
    most = mx.device_info().get("max_recommended_working_set_size")
    return None if most is None else mx.set_wired_limit(int(most))
