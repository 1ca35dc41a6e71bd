"""Keys and values between the buffers of layers and the arrays of blocks, by plain mlx.

A block's array is [leaves, heads, count, width]: leaves are keys or values of a layer, whose buffer
is [1, heads, room, width]. Packed it is bytes, [leaves, heads, count, packed_width(width)]: of each
row the numbers as signed bytes, then a float32 for each 32 of them, by which they are multiplied.
A number is off by at most half of that, a 254th of the largest of its 32. Knows nothing of kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

GROUP = 32  # numbers that share a scale
_SCALE_BYTES = 4
_MOST = 127.0
_mx: Any = mx


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens [begin, end) of a block's array."""

    array: mx.array
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many tokens that are."""
        return self.end - self.begin


def can_pack(width: int) -> bool:
    """Whether rows of `width` numbers have a packed form."""
    return width % GROUP == 0


def packed_width(width: int) -> int:
    """Bytes of a packed row of `width` numbers."""
    assert can_pack(width), width
    return width + width // GROUP * _SCALE_BYTES


def unpacked_width(num_bytes: int) -> int:
    """Numbers of a packed row of so many bytes."""
    return num_bytes * GROUP // (GROUP + _SCALE_BYTES)


def pack(x: mx.array) -> mx.array:
    """x [..., width] of 16- or 32-bit numbers as bytes [..., packed_width(width)]."""
    groups = _mx.reshape(x.astype(_mx.float32), (*x.shape[:-1], -1, GROUP))
    scales = _mx.abs(groups).max(-1) / _MOST
    safe = _mx.where(scales > 0, scales, 1.0)
    numbers = _mx.round(groups / safe[..., None]).astype(_mx.int8)
    numbers = _mx.reshape(numbers, x.shape).view(_mx.uint8)
    return _mx.concatenate([numbers, _mx.contiguous(scales).view(_mx.uint8)], axis=-1)


def unpack(packed: mx.array, dtype: mx.Dtype) -> mx.array:
    """The numbers [..., width] of `dtype` that packed bytes stand for."""
    width = unpacked_width(packed.shape[-1])
    numbers = _mx.contiguous(packed[..., :width]).view(_mx.int8)
    scales = _mx.contiguous(packed[..., width:]).view(_mx.float32)
    groups = _mx.reshape(numbers.astype(_mx.float32), (*packed.shape[:-1], -1, GROUP))
    product = groups * scales[..., None]
    return _mx.reshape(product, (*packed.shape[:-1], width)).astype(dtype)


def gather(buffers: Sequence[mx.array], begin: int, end: int, *, is_packed: bool) -> mx.array:
    """The tokens [begin, end) of buffers [1, heads, room, width] as a block's array."""
    stack = _mx.stack([buffer[0, :, begin:end] for buffer in buffers])
    return pack(stack) if is_packed else stack


def scatter(
    pieces: Sequence[Piece], room: int, *, dtype: mx.Dtype, is_packed: bool
) -> list[mx.array]:
    """A buffer for each leaf: the pieces' tokens one after the other, then `room` of zeros."""
    num_leaves, heads, _, width = pieces[0].array.shape
    cut = [piece.array[:, :, piece.begin : piece.end] for piece in pieces]
    if is_packed:
        cut = [unpack(one, dtype) for one in cut]
        width = cut[0].shape[-1]
    if room:
        spare = _mx.zeros((1, heads, room, width), dtype=dtype)
        return [
            _mx.concatenate([*(one[leaf : leaf + 1] for one in cut), spare], axis=2)
            for leaf in range(num_leaves)
        ]
    return [
        _mx.concatenate([one[leaf : leaf + 1] for one in cut], axis=2) for leaf in range(num_leaves)
    ]
