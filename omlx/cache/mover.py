"""How keys and values move between layers and blocks: by verified kernels, else by plain mlx.

Also in which form blocks hold them: as they are, or in 8 bits, which loses some of each number.
Knows nothing about cache classes. Engine thread only.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from omlx.cache.landing import MX_DTYPES
from omlx.custom_kernels import kv_format
from omlx.custom_kernels.kv_format import Piece
from omlx.custom_kernels.op import MAX_ROWS, Case, Function

if TYPE_CHECKING:  # it loads the tables of all operations
    from omlx.custom_kernels.selection import Selection

Form = tuple[int, int, int, str, int]  # leaves, heads, width, dtype, window
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BITS = 8
_mx: Any = mx  # for calls that its stubs leave untyped
_COUNT = MAX_ROWS + 1  # the fewest tokens that kernels move


class Mover:
    """Moves groups of leaves that have the same shape; `selection` gives out kernels, None on a
    CPU. With `is_packed` blocks hold 8 bits of all rows that have such a form."""

    def __init__(self, selection: "Selection | None" = None, *, is_packed: bool = False) -> None:
        self._selection = selection
        self._is_packed = is_packed

    def packs(self, width: int) -> bool:
        """Whether blocks hold rows of so many numbers in 8 bits."""
        return self._is_packed and kv_format.can_pack(width)

    def form(self, width: int, dtype: str) -> tuple[str, int]:
        """The type and the width of such rows in a block, as safetensors calls the type."""
        return ("U8", kv_format.packed_width(width)) if self.packs(width) else (dtype, width)

    def gather(self, buffers: Sequence[Any], begin: int, end: int, *, dtype: str) -> Any:
        """The tokens [begin, end) of buffers [1, heads, room, width] as a block's array; None where
        no kernel does it faster."""
        _, heads, _, width = buffers[0].shape
        function = self._function("kv_pack", end - begin, (len(buffers), heads, width), dtype)
        bits = _BITS if self.packs(width) else 0
        return None if function is None else function(buffers, begin, end, bits)

    def packed(self, stack: Any) -> Any:
        """Rows [..., width] in the form that blocks have."""
        return kv_format.pack(stack) if self.packs(stack.shape[-1]) else stack

    def scatter(
        self, pieces: Sequence[Piece], room: int, shape: tuple[int, int, int], dtype: str
    ) -> list[Any]:
        """A buffer for each leaf: the pieces' tokens one after the other, then `room` of zeros;
        `shape` is leaves, heads, width."""
        like = MX_DTYPES[dtype]
        count = sum(piece.size for piece in pieces)
        is_packed = self.packs(shape[-1])
        function = self._function("kv_unpack", count, shape, dtype)
        if function is None:
            return kv_format.scatter(pieces, room, dtype=like, is_packed=is_packed)
        spans = [(piece.begin, piece.end) for piece in pieces]
        bits = _BITS if is_packed else 0
        return list(function([piece.array for piece in pieces], spans, room, like, bits))

    def kernels(self, forms: Sequence[Form], count: int) -> tuple[str, ...]:
        """The names of the kernels that move `count` tokens of such groups of leaves; remembers
        what is lacking (mutates the selection). Rings are put in order by plain mlx."""
        return tuple(
            name
            for name in ("kv_pack", "kv_unpack")
            if any(
                [
                    self._function(name, count, (leaves, heads, width), dtype) is not None
                    for leaves, heads, width, dtype, window in forms
                    if name == "kv_unpack" or not window
                ]
            )
        )

    def warm(self, forms: Sequence[Form]) -> None:
        """Have the kernels compiled that move such groups, so that no request waits for it."""
        for form in forms:
            if names := self.kernels([form], _COUNT):
                self._warm(form, is_gathered="kv_pack" in names)

    def _warm(self, form: Form, *, is_gathered: bool) -> None:
        leaves, heads, width, dtype, _ = form
        buffer = mx.zeros((1, heads, _COUNT, width), MX_DTYPES[dtype])
        block = self.packed(mx.stack([buffer[0]] * leaves))
        if is_gathered:
            block = self.gather([buffer] * leaves, 0, _COUNT, dtype=dtype)
        for num in (1, _COUNT):  # few pieces and many are compiled each
            pieces = [Piece(block, 0, _COUNT)] * num
            _mx.eval(self.scatter(pieces, 0, (leaves, heads, width), dtype))

    def _function(
        self, name: str, count: int, shape: tuple[int, int, int], dtype: str
    ) -> Function | None:
        selection = self._selection
        if selection is None:
            return None
        leaves, heads, width = shape
        bits = _BITS if self.packs(width) else 0
        case = Case(_TYPES[dtype], count, bits=bits, leaves=leaves, heads=(0, heads, width))
        return selection.function(name) if selection.speedup(name, case) > 1.0 else None
