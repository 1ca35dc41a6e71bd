"""The running batch: the one module that knows mlx-lm's BatchGenerator and its private fields.

Knows nothing about the prefix cache, the scheduler or text. Engine thread only.

Private fields used, each held by tests/unit/engine/test_batch_contract.py: `_prompt_batch` and
`_generation_batch` (`uids`, `tokens`, `prompt_cache`), `BatchKVCache.left_padding`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, StopSequences

from omlx.engine.sampling import Sampling

LayerSlice = tuple[mx.array, mx.array]


@dataclass(frozen=True, slots=True)
class RowInput:
    """One row to run: `segments` are what is left to prefill, `prefix` is what `caches` hold.

    `emitted` is what a row that runs again has generated before, for stop sequences that span it.
    """

    row_id: str
    prefix: Sequence[int]
    segments: Sequence[Sequence[int]]
    caches: list[Any] | None
    max_tokens: int
    sampling: Sampling
    stop: Sequence[Sequence[int]]
    emitted: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class RowProgress:
    """A row that prefilled: `done` of `total` tokens, and what its state covers now.

    The last token is a step of its own, so a step always ends with all but the last one done.
    """

    row_id: str
    done: int
    total: int
    num_cached: int
    step_tokens: int

    @property
    def is_complete(self) -> bool:
        """The row decodes from now on."""
        return self.done == self.total


@dataclass(frozen=True, slots=True)
class RowToken:
    """A row that decoded one token; `finish` is "stop", "length" or None.

    `final` are the layer caches of a finished row: they cover prompt and all generated tokens.
    """

    row_id: str
    token: int
    finish: str | None
    final: list[Any] | None
    num_cached: int


class _Stop:
    """StopSequences whose matchers have seen some tokens already."""

    def __init__(self, sequences: Sequence[Sequence[int]], seen: Sequence[int]) -> None:
        self._sequences = StopSequences([tuple(s) for s in sequences])
        self._seen = tuple(seen)

    def matcher(self) -> StopSequences.Matcher:
        """A matcher that continues after what was seen."""
        matcher = self._sequences.matcher()
        for token in self._seen:
            matcher.advance(token)
        return matcher


class Batch:
    """Rows that prefill and decode together, one step at a time."""

    def __init__(self, model: Any, *, max_rows: int, prefill_chunk: int) -> None:
        self._model = model
        self._max_rows = max_rows
        self._prefill_chunk = prefill_chunk
        self._uids: dict[str, int] = {}
        self._rows: dict[int, str] = {}
        self._done: dict[str, int] = {}
        self._generator = self._new_generator()

    def _new_generator(self) -> Any:
        return BatchGenerator(
            self._model,
            completion_batch_size=self._max_rows,
            prefill_batch_size=self._max_rows,
            prefill_step_size=self._prefill_chunk,
        )

    def __len__(self) -> int:
        return len(self._uids)

    def insert(self, row: RowInput) -> None:
        """Add a row; its last token is always a segment of its own."""
        (uid,) = self._generator.insert_segments(
            [[list(segment) for segment in row.segments]],
            max_tokens=[row.max_tokens],
            caches=[row.caches],
            all_tokens=[list(row.prefix)],
            samplers=[row.sampling.sampler],
            logits_processors=[list(row.sampling.processors)],
            stop_sequences=[_Stop(row.stop, row.emitted)],
        )
        self._uids[row.row_id] = uid
        self._rows[uid] = row.row_id

    def remove(self, row_id: str) -> None:
        """Take a row out at once; unknown rows pass."""
        uid = self._uids.get(row_id)
        if uid is not None:
            self._generator.remove([uid])
            self._forget(uid)

    def _forget(self, uid: int) -> None:
        row_id = self._rows.pop(uid)
        del self._uids[row_id]
        self._done.pop(row_id, None)

    def step(self) -> tuple[list[RowProgress], list[RowToken]]:
        """Decode one token for every decoding row, then prefill one chunk.

        Finished rows are gone afterwards. An exception leaves the batch unusable: call `reset`.
        """
        prompts, generated = self._generator.next()
        tokens: list[RowToken] = []
        for r in generated:
            done = r.finish_reason is not None
            num_cached = len(r.all_tokens) if done else len(self._tokens(r.uid))
            tokens.append(
                RowToken(self._rows[r.uid], r.token, r.finish_reason, r.prompt_cache, num_cached)
            )
            if done:
                self._forget(r.uid)
        return [self._progress(p.uid, *p.progress) for p in prompts], tokens

    def _progress(self, uid: int, done: int, total: int) -> RowProgress:
        row_id = self._rows[uid]
        step_tokens = done - self._done.get(row_id, 0)
        self._done[row_id] = done
        return RowProgress(row_id, done, total, len(self._tokens(uid)), step_tokens)

    def num_cached(self, row_id: str) -> int:
        """How many tokens the row's state covers; 0 for a row that no step has reached yet."""
        uid = self._uids[row_id]
        return 0 if self._find(uid) is None else len(self._tokens(uid))

    def _find(self, uid: int) -> tuple[Any, int] | None:
        for batch in (self._generator._prompt_batch, self._generator._generation_batch):
            if uid in batch.uids:
                return batch, batch.uids.index(uid)
        return None

    def _place(self, uid: int) -> tuple[Any, int]:
        place = self._find(uid)
        assert place is not None, "the row has not been reached by a step"
        return place

    def _tokens(self, uid: int) -> list[int]:
        batch, index = self._place(uid)
        return batch.tokens[index]

    def slice(self, row_id: str, start: int, end: int) -> list[LayerSlice]:
        """Keys and values [1, H, end - start, D] of a running row's tokens, for every layer.

        The arrays are lazy views: evaluate copies of them before the next step.
        """
        batch, index = self._place(self._uids[row_id])
        first = batch.prompt_cache[0].left_padding.tolist()[index]
        with mx.stream(self._generator.stream):
            return [
                (
                    cache.keys[index : index + 1, :, first + start : first + end],
                    cache.values[index : index + 1, :, first + start : first + end],
                )
                for cache in batch.prompt_cache
            ]

    @staticmethod
    def slice_final(final: list[Any], start: int, end: int) -> list[LayerSlice]:
        """The same from the layer caches of a finished row."""
        return [(c.keys[:, :, start:end], c.values[:, :, start:end]) for c in final]

    @property
    def stream(self) -> Any:
        """The stream on which rows are computed."""
        return self._generator.stream

    def reset(self) -> None:
        """Drop every row and start anew, after a step has raised."""
        self._generator.close()
        self._uids.clear()
        self._rows.clear()
        self._done.clear()
        self._generator = self._new_generator()

    def close(self) -> None:
        """Give back what the generator holds."""
        self._generator.close()
