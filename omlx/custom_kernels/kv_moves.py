"""The launches that move keys and values between buffers of layers and arrays of blocks.

What is moved, and its packed form, is described in `kv_format`. Knows nothing of models or caches.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend, Launch
from omlx.custom_kernels.kv_format import GROUP, Piece, packed_width, unpacked_width
from omlx.custom_kernels.launch import Grid, Run

# The files that a verdict on these kernels depends on, beside their sources.
LAUNCHING = tuple(
    Path(__file__).with_name(name) for name in ("kv_moves.py", "kv_format.py", "launch.py")
)
PART = 8  # numbers that one thread moves
_THREADS = 256
_mx: Any = mx


@dataclass(frozen=True, slots=True)
class Most:
    """How many arrays one launch takes: leaves of one block, or pieces and the leaves they go to.

    Of pieces there are always so many, or `few`: for another number mlx would compile anew.
    """

    gathered: int
    pieces: int
    few: int
    leaves: int


# Metal binds 31 buffers to a launch; on CUDA a launch has 4 KB for its arguments.
_MOST = {"metal": Most(28, 16, 16, 12), "cuda": Most(160, 128, 8, 160)}


class KvMoves:
    """The two kernels of one device; one without a source is an OmlxError where it is used.

    For one thread: it keeps what calls of one form need beside their inputs (mutates).
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._most = _MOST[backend.device.backend]
        self._kernels: dict[Hashable, Launch] = {}
        self._runs: dict[Hashable, Run] = {}

    def gather(
        self, buffers: Sequence[mx.array], begin: int, end: int, *, is_packed: bool
    ) -> mx.array:
        """The tokens [begin, end) of buffers [1, heads, room, width], all of one shape and type,
        as a block's array."""
        parts = [
            self._gathered(some, begin, end, is_packed=is_packed)
            for some in evenly(buffers, self._most.gathered)
        ]
        return parts[0] if len(parts) == 1 else _mx.concatenate(parts)

    def scatter(
        self, pieces: Sequence[Piece], room: int, *, dtype: mx.Dtype, is_packed: bool
    ) -> list[mx.array]:
        """A buffer for each leaf: the pieces' tokens one after the other, then `room` of zeros."""
        step = self._most.pieces
        stretches = [pieces[i : i + step] for i in range(0, len(pieces), step)]
        made: list[list[mx.array]] = []
        for some in stretches:
            spare = room if some is stretches[-1] else 0
            made.append(self._scattered(some, spare, dtype, is_packed=is_packed))
        if len(made) == 1:
            return made[0]
        return [_mx.concatenate(parts, axis=2) for parts in zip(*made, strict=True)]

    def _gathered(
        self, buffers: Sequence[mx.array], begin: int, end: int, *, is_packed: bool
    ) -> mx.array:
        _, heads, room, width = buffers[0].shape
        dtype, count, num = buffers[0].dtype, end - begin, len(buffers)
        key = (num, heads, width, dtype, count, is_packed)
        run = self._runs.get(key)
        if run is None:
            threads = heads * count * (GROUP if is_packed else width // PART)
            run = self._kernel("kv_pack", num, ["y"]).prepare(
                template={"T": dtype, "WIDTH": width, "PACKED": is_packed},
                grid=Grid(-(-threads // _THREADS), _THREADS, num),
                shapes=[(num, heads, count, packed_width(width) if is_packed else width)],
                dtypes=[_mx.uint8 if is_packed else dtype],
            )
            self._runs[key] = run
        place = _mx.array([begin, count, heads, room], dtype=_mx.int32)
        return run([*buffers, place])[0]

    def _scattered(
        self, pieces: Sequence[Piece], room: int, dtype: mx.Dtype, *, is_packed: bool
    ) -> list[mx.array]:
        leaves, heads, _, width = pieces[0].array.shape
        width = unpacked_width(width) if is_packed else width
        total = room + sum(piece.size for piece in pieces)
        most = self._most
        num = most.few if len(pieces) <= most.few else most.pieces
        arrays = [*(piece.array for piece in pieces), *[pieces[0].array] * (num - len(pieces))]
        entries = _entries(pieces, room)
        longest = max(entry[2] for entry in entries)
        found: list[mx.array] = []
        for some in evenly(range(leaves), most.leaves):
            threads = len(some) * heads * longest * (width // PART)
            run = self._kernel("kv_unpack", num, _named("y", len(some))).prepare(
                template={"T": dtype, "WIDTH": width, "PACKED": is_packed},
                grid=Grid(-(-threads // _THREADS), _THREADS, len(entries)),
                shapes=[(1, heads, total, width)] * len(some),
                dtypes=[dtype] * len(some),
            )
            place = _mx.array([(some[0], len(some), heads, total), *entries], dtype=_mx.int32)
            found += run([*arrays, place])
        return found

    def _kernel(self, name: str, num_inputs: int, outputs: Sequence[str]) -> Launch:
        key = (name, num_inputs, len(outputs))
        if key not in self._kernels:
            inputs = [*_named("x", num_inputs), "place"]
            self._kernels[key] = self._backend.kernel(name, inputs, outputs)
        return self._kernels[key]


def _entries(pieces: Sequence[Piece], room: int) -> list[tuple[int, int, int, int]]:
    """Of each piece, and of the room: where it begins in a buffer, its first token, how many it
    has, and how many are stored, which are 0 for the room."""
    entries: list[tuple[int, int, int, int]] = []
    at = 0
    for piece in pieces:
        entries.append((at, piece.begin, piece.size, int(piece.array.shape[2])))
        at += piece.size
    if room:
        entries.append((at, 0, room, 0))
    return entries


def evenly(whole: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """The whole in as few parts of at most `most` as there can be, of two sizes at most."""
    num = -(-len(whole) // most)
    size, more = divmod(len(whole), num)
    ends = [idx * size + min(idx, more) for idx in range(num + 1)]
    return [whole[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def _named(stem: str, num: int) -> list[str]:
    return [f"{stem}{idx}" for idx in range(num)]
