"""A batch of rows that steps as omlx.engine.batch.Batch does, without a model.

A row's next token follows from all tokens before it, its state from tests.fakes.state.
"""

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omlx.engine.batch import RowInput, RowProgress, RowToken
from omlx.engine.prefill import piece_size
from tests.fakes import state


def next_token(tokens: Sequence[int], num_vocab: int) -> int:
    """What the model says after `tokens`."""
    return zlib.crc32(b"".join(t.to_bytes(4, "little") for t in tokens)) % num_vocab


def solo(
    tokens: Sequence[int], max_tokens: int, num_vocab: int, stop: Sequence[Sequence[int]] = ()
) -> tuple[list[int], str]:
    """The tokens of an undisturbed run, its stop token included, and why it ends."""
    new: list[int] = []
    while True:
        new.append(next_token([*tokens, *new], num_vocab))
        if any(len(s) and new[-len(s) :] == list(s) for s in stop):
            return new, "stop"
        if len(new) == max_tokens:
            return new, "length"


@dataclass
class _Row:
    asked: RowInput
    tokens: list[int]
    segments: list[list[int]]
    total: int
    done: int = 0
    new: list[int] = field(default_factory=list)
    is_reached: bool = False
    is_decoding: bool = False


class FakeBatch:
    """`failures` are numbers of steps that raise, `poison` are rows that a step dies of,
    `faulty` are rows whose own sampling code raises at the next token, `broken` are rows for which
    the model's next logits are not finite."""

    def __init__(self, *, chunk: int, num_vocab: int) -> None:
        self.chunk = chunk
        self.num_vocab = num_vocab
        self.num_steps = 0
        self.num_resets = 0
        self.most_rows = 0
        self.failures: set[int] = set()
        self.poison: set[str] = set()
        self.faulty: set[str] = set()
        self.broken: set[str] = set()
        self.inserted: list[RowInput] = []
        self.on_close: Callable[[], None] = lambda: None
        self._rows: dict[str, _Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def row_ids(self) -> Collection[str]:
        return self._rows.keys()

    def insert(self, row: RowInput) -> None:
        assert row.row_id not in self._rows
        assert row.max_tokens > 0
        assert all(row.segments)
        assert len(row.segments[-1]) == 1
        if row.caches is None:
            assert not row.prefix
        else:
            assert state.holds(row.caches, list(row.prefix))
        self.inserted.append(row)
        segments = [list(segment) for segment in row.segments]
        total = sum(map(len, segments))
        self._rows[row.row_id] = _Row(row, list(row.prefix), segments, total)
        self.most_rows = max(self.most_rows, len(self._rows))

    def remove(self, row_id: str) -> None:
        self._rows.pop(row_id, None)

    @property
    def done_ids(self) -> list[str]:
        rows = self._rows.values()
        return [r.asked.row_id for r in rows if not r.is_decoding and r.total - r.done == 1]

    def step(
        self,
        chosen: Collection[str] | None = None,
        grain: int | None = None,
        *,
        starts: bool = True,
    ) -> tuple[list[RowProgress], list[RowToken]]:
        assert self._rows, "nothing to do"
        self.num_steps += 1
        if self.num_steps in self.failures or self.poison & self._rows.keys():
            raise RuntimeError("the model failed")
        tokens = [self._decode(row) for row in list(self._rows.values()) if row.is_decoding]
        assert chosen is None or set(chosen) <= self._rows.keys()
        prompts = [
            self._prefill(row, grain or self.chunk)
            for row in self._rows.values()
            if not row.is_decoding
            and (
                starts
                if row.total - row.done == 1
                else chosen is None or row.asked.row_id in chosen
            )
        ]
        return prompts, tokens

    def num_left(self, row_id: str) -> int:
        row = self._rows.get(row_id)
        return 0 if row is None or row.is_decoding else row.total - row.done - 1

    def take_next(self, row_id: str) -> RowToken | None:
        row = self._rows[row_id]
        token = self._decode(row) if row.is_decoding else None
        self.remove(row_id)
        # Its state covers all before the token, so nothing of it is final.
        return token and replace(token, final=None, num_cached=token.num_cached - 1)

    def _decode(self, row: _Row) -> RowToken:
        asked = row.asked
        if asked.row_id in self.faulty:
            asked.sampling.fault.record(ValueError("bad sampler"))
        if asked.row_id in self.broken:
            del self._rows[asked.row_id]
            return RowToken(asked.row_id, -1, "fault", None, len(row.tokens) + 1)
        token = next_token(row.tokens, self.num_vocab)
        row.tokens.append(token)
        row.new.append(token)
        finish = "length" if len(row.new) >= asked.max_tokens else None
        new = [*asked.emitted, *row.new]
        if any(len(s) and new[-len(s) :] == list(s) for s in asked.stop):
            finish = "stop"
        if finish is not None:
            del self._rows[asked.row_id]
        final = state.caches(row.tokens) if finish is not None else None
        return RowToken(asked.row_id, token, finish, final, len(row.tokens))

    def _prefill(self, row: _Row, grain: int) -> RowProgress:
        row.is_reached = True
        size = piece_size(min(len(row.segments[0]), self.chunk), len(row.tokens), grain)
        piece = row.segments[0][:size]
        row.is_decoding = row.total - row.done == 1
        del row.segments[0][:size]
        if not row.segments[0]:
            row.segments.pop(0)
        row.tokens += piece
        row.done += len(piece)
        return RowProgress(row.asked.row_id, row.done, row.total, len(row.tokens), len(piece))

    def settle(self, row_id: str) -> None:
        """Nothing is in flight here."""

    def num_cached(self, row_id: str) -> int:
        row = self._rows[row_id]
        return len(row.tokens) if row.is_reached else 0

    def caches(self, row_id: str) -> list[Any]:
        return state.caches(self._rows[row_id].tokens)

    def close(self) -> None:
        self.on_close()

    def reset(self) -> None:
        self.num_resets += 1
        self._rows.clear()
