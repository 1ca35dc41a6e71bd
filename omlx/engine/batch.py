"""The running batch: the one module that knows mlx-lm's BatchGenerator and its private fields.

Knows nothing about the prefix cache, the scheduler or text. Engine thread only.

Rows prefill one after the other on caches of their own and then decode together. Private fields
used, each held by tests/unit/engine/test_batch_contract.py: `_generation_batch` (`uids`, `tokens`,
`prompt_cache`, `max_tokens`, `_next_tokens`, `_num_tokens`, `_matchers`),
`BatchKVCache.left_padding`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, StopSequences
from mlx_lm.models.cache import BatchKVCache, CacheList, KVCache

from omlx.engine.prefill import Prefill
from omlx.engine.sampling import NOT_FINITE, Sampling
from omlx.engine.shaping import ShapedModel, noted

_List: Any = CacheList  # its stubs leave it untyped


@dataclass(frozen=True, slots=True)
class RowInput:
    """One row to run: `prefix` is what `caches` hold, `segments` are what is left to prefill.

    The last segment is the last token, which starts the decoding; the others say where pieces of
    at most one prefill chunk have to end.

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
    """A row that decoded one token; `finish` is "stop", "length", "fault" or None.

    A fault is that no token could be chosen, since no logit was finite: `token` means nothing.
    `final` are the layer caches of a row that finished otherwise: they cover prompt and all
    generated tokens.
    """

    row_id: str
    token: int
    finish: str | None
    final: list[Any] | None
    num_cached: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Stop:
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


@dataclass(slots=True)
class _Row:
    """A row of the batch: it has a `prefill` first, then a `uid` of the generator."""

    input: RowInput
    total: int
    prefill: Prefill | None
    uid: int | None = None


class Batch:
    """Rows that prefill and decode, one step at a time."""

    def __init__(
        self, model: Any, *, max_rows: int, prefill_chunk: int, is_ahead: bool = True
    ) -> None:
        self._model = model
        self._shaped: Any = ShapedModel(model)
        self._is_ahead = is_ahead  # whether a prefill may run ahead of what is stored of it
        self._max_rows = max_rows
        self._prefill_chunk = prefill_chunk
        self._rows: dict[str, _Row] = {}
        self._by_uid: dict[int, str] = {}
        # The default stream, so that storing and restoring need no synchronization with it.
        self._stream = mx.default_stream(mx.default_device())
        self._generator = self._new_generator()

    def _new_generator(self) -> Any:
        return BatchGenerator(
            self._shaped,
            completion_batch_size=self._max_rows,
            prefill_batch_size=self._max_rows,
            prefill_step_size=self._prefill_chunk,
            stream=self._stream,
        )

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def row_ids(self) -> Collection[str]:
        """The rows that are in work."""
        return self._rows.keys()

    def insert(self, row: RowInput) -> None:
        """Add a row; it prefills after those that came before."""
        cut = pieces(row, self._prefill_chunk)
        prefill = Prefill(self._model, row.prefix, cut, row.caches, is_ahead=self._is_ahead)
        total = sum(len(s) for s in row.segments)
        self._rows[row.row_id] = _Row(row, total, prefill)

    def remove(self, row_id: str) -> None:
        """Take a row out at once; unknown rows pass."""
        row = self._rows.get(row_id)
        if row is not None:
            if row.uid is not None:
                self._generator.remove([row.uid])
            self._forget(row_id)

    def _forget(self, row_id: str) -> None:
        row = self._rows.pop(row_id)
        if row.uid is not None:
            del self._by_uid[row.uid]

    @property
    def done_ids(self) -> list[str]:
        """The rows that would begin to decode in the next step."""
        rows = self._rows.items()
        return [row_id for row_id, row in rows if row.prefill and row.prefill.is_finished]

    def step(
        self,
        chosen: Collection[str] | None = None,
        grain: int | None = None,
        *,
        starts: bool = True,
    ) -> tuple[list[RowProgress], list[RowToken]]:
        """Prefill, then decode one token for every decoding row.

        The `chosen` prompts compute a piece each, of at most `grain` tokens and ending on its grid;
        None is one chunk for the prompts in their order. Without `starts` those that are done wait
        another step. Finished rows are gone afterwards. An exception leaves the batch unusable:
        call `reset`.
        """
        chosen = _in_order(self._rows, self._prefill_chunk) if chosen is None else chosen
        progress = self._prefill(chosen, grain or self._prefill_chunk, starts=starts)
        if not self._by_uid:
            return progress, []
        uids = list(self._decoding.uids)
        fresh = [uid for uid in self._by_uid if uid not in uids]
        calls = [[self._rows[self._by_uid[uid]] for uid in call] for call in (uids, fresh) if call]
        self._shaped.expect([[row.input.sampling.shape for row in rows] for rows in calls])
        started, generated = self._generator.next()
        tokens = [self._decoded(response) for response in generated]
        for p in started:
            row_id = self._by_uid[p.uid]
            total = self._rows[row_id].total
            progress.append(RowProgress(row_id, total, total, len(self._tokens(p.uid)), 1))
        return progress, tokens

    def _decoded(self, response: Any) -> RowToken:
        """What one row of a step says; a row that is over is forgotten."""
        uid, finish = response.uid, response.finish_reason
        row_id = self._by_uid[uid]
        num_cached = len(self._tokens(uid) if finish is None else response.all_tokens)
        if response.token == NOT_FINITE:
            self._rows[row_id].input.sampling.blame()
            self.remove(row_id)
            return RowToken(row_id, NOT_FINITE, "fault", None, num_cached)
        logprob, top = noted(self._rows[row_id].input.sampling.shape)
        if finish is not None:
            self._forget(row_id)
        final = response.prompt_cache
        return RowToken(row_id, response.token, finish, final, num_cached, logprob, top)

    def _prefill(self, chosen: Collection[str], grain: int, *, starts: bool) -> list[RowProgress]:
        """Launch what may be computed, then take up what was launched before: the device has a
        piece of one prompt to compute while the host waits for the last one of another."""
        running: list[tuple[str, _Row, Prefill]] = []
        for row_id, row in self._rows.items():
            prefill = row.prefill
            if prefill is None:
                continue
            if prefill.is_finished:  # what its last piece computed has been sliced by now
                if starts:
                    self._start_decoding(row_id, row, prefill)
                continue
            if prefill.next_size and row_id in chosen:
                prefill.launch(grain)
            running.append((row_id, row, prefill))
        progress: list[RowProgress] = []
        for row_id, row, prefill in running:
            finished = prefill.wait()
            if finished:
                done, covers = prefill.num_done, prefill.num_cached
                progress.append(RowProgress(row_id, done, row.total, covers, finished))
        return progress

    def _start_decoding(self, row_id: str, row: _Row, prefill: Prefill) -> None:
        uids: list[int] = self._generator.insert_segments(
            [[list(row.input.segments[-1])]],
            max_tokens=[row.input.max_tokens],
            caches=[prefill.caches],
            all_tokens=[prefill.prefix + prefill.launched],
            samplers=[row.input.sampling.sampler],
            logits_processors=[list(row.input.sampling.processors)],
            stop_sequences=[Stop(row.input.stop, row.input.emitted)],
        )
        row.prefill = None
        row.uid = uids[0]
        self._by_uid[uids[0]] = row_id

    def settle(self, row_id: str) -> None:
        """Wait for what is launched of a row's prompt; only for a row that is about to leave."""
        prefill = self._rows[row_id].prefill
        if prefill is not None:
            prefill.settle()

    def num_left(self, row_id: str) -> int:
        """How many tokens of a prompt no step has begun to compute, its last one aside."""
        row = self._rows.get(row_id)
        return row.prefill.num_left if row is not None and row.prefill is not None else 0

    def take_next(self, row_id: str) -> RowToken | None:
        """Take a row out and the token with it that is computed already, but not delivered: the
        state covers all before it. None for a row that has none."""
        row, batch = self._rows[row_id], self._decoding
        token = None
        if row.uid is not None and row.uid in batch.uids:
            index = batch.uids.index(row.uid)
            token = _next_token(batch, row, index)
        self.remove(row_id)
        return token

    def num_cached(self, row_id: str) -> int:
        """How many tokens the row's state covers; 0 for a row that no step has reached yet."""
        row = self._rows[row_id]
        if row.prefill is not None:
            return row.prefill.num_cached
        assert row.uid is not None
        return len(self._tokens(row.uid)) if row.uid in self._decoding.uids else 0

    @property
    def _decoding(self) -> Any:
        return self._generator._generation_batch

    def _tokens(self, uid: int) -> list[int]:
        batch = self._decoding
        return batch.tokens[batch.uids.index(uid)]

    def caches(self, row_id: str) -> list[Any]:
        """The plain layer caches of a running row, lazy copies or the row's own: store what is
        wanted of them before the next step and don't change them."""
        row = self._rows[row_id]
        if row.prefill is not None:
            return row.prefill.caches
        batch = self._decoding
        index = batch.uids.index(row.uid)
        return [_extract(cache, index) for cache in batch.prompt_cache]

    def reset(self) -> None:
        """Drop every row and start anew, after a step has raised."""
        self._generator.close()
        self._rows.clear()
        self._by_uid.clear()
        self._generator = self._new_generator()

    def close(self) -> None:
        """Give back what the generator holds."""
        self._generator.close()


def _next_token(batch: Any, row: _Row, index: int) -> RowToken:
    """The token of a row that is computed and not delivered yet."""
    row_id = row.input.row_id
    num_cached, token = len(batch.tokens[index]), int(batch._next_tokens[index].item())
    if token == NOT_FINITE:
        row.input.sampling.blame()
        return RowToken(row_id, token, "fault", None, num_cached)
    finish = "length" if batch._num_tokens[index] + 1 >= batch.max_tokens[index] else None
    if batch._matchers[index].advance(token):
        finish = "stop"
    logprob, top = noted(row.input.sampling.shape, batch._next_tokens[index])
    return RowToken(row_id, token, finish, None, num_cached, logprob, top)


def _in_order(rows: Mapping[str, _Row], chunk: int) -> list[str]:
    """One chunk: the first prompt, and others whose piece fits in with it."""
    chosen: list[str] = []
    room = chunk
    for row_id, row in rows.items():
        size = row.prefill.next_size if row.prefill is not None else 0
        if size and (size <= room or room == chunk):
            chosen.append(row_id)
            room -= size
    return chosen


def pieces(row: RowInput, size: int) -> list[Sequence[int]]:
    """What a row has to prefill before its last token, in pieces of at most `size`."""
    return [s[i : i + size] for s in row.segments[:-1] for i in range(0, len(s), size)]


def why_not_merged(caches: Sequence[Any]) -> str | None:
    """Why rows with layer caches like these can't decode together; None if they can.

    The caches must have seen a token; they stay as they are.
    """
    for layer, cache in enumerate(caches):
        try:
            merged = cache.merge([cache, cache])
            merged.extend(cache.merge([cache]))
            merged.filter([0, 2])
            merged.extract(1)
        except (AttributeError, TypeError, ValueError, RuntimeError, LookupError):
            kind = cast(type[object], type(cache)).__name__
            return f"{kind} (layer {layer}) can't be merged into a batch"
    return None


def _extract(cache: Any, index: int) -> Any:
    """One row of a batch's cache: views of keys and values, since a copy would be of all tokens."""
    kind = cast(type[object], type(cache))
    if kind is CacheList:
        return _List(*(_extract(below, index) for below in cache.caches))
    if kind is not BatchKVCache:
        return cache.extract(index)
    first = int(cache.left_padding[index].item())
    row = KVCache()
    row.keys = cache.keys[index : index + 1, :, first:]
    row.values = cache.values[index : index + 1, :, first:]
    row.offset = cache.size() - first
    return row
