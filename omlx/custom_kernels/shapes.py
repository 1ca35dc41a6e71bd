"""Tables of cases: those that are verified, edges included, and those that are timed.

Knows nothing of operations.
"""

from collections.abc import Sequence
from itertools import product

from omlx.custom_kernels.op import Case

DTYPES = ("bfloat16", "float16")
BITS = (4, 8)
GROUPS = (32, 64, 128)
# One for each bucket of rows, the edges of tiles among them, and one within a tile.
ROWS = (1, 3, 8, 9, 16)
TIMED_ROWS = (1, 2, 4, 8, 16)
Outs = Sequence[tuple[int, ...]]
ALL_PACKINGS = tuple(
    (dtype, bits, group) for group, bits, dtype in product((64, 32, 128), BITS, DTYPES)
)
# Where the arithmetic is that of a kernel that is verified with all.
FEW_PACKINGS = (
    ("bfloat16", 4, 64),
    ("bfloat16", 8, 64),
    ("float16", 4, 64),
    ("bfloat16", 4, 32),
    ("float16", 8, 128),
)
NO_PACKINGS = tuple((dtype, 0, 0) for dtype in DTYPES)


def cases_of(
    *,
    rows: Sequence[int] = ROWS,
    outs: Outs,
    packings: Sequence[tuple[str, int, int]] = ALL_PACKINGS,
) -> tuple[Case, ...]:
    """Every packing (type, bits, group) and number of rows for the first of `outs`; of the others
    the first packing, with the fewest and the most rows.

    640 columns are no multiple of what a block takes at once, 128 less than it, 1024 a multiple.
    """
    first, *others = outs
    found = [
        Case(dtype, num, (640, 1024)[idx % 2], first, bits, group)
        for (dtype, bits, group), (idx, num) in product(packings, enumerate(rows))
    ]
    dtype, bits, group = packings[0]
    for more, num in product(others, (rows[0], rows[-1])):
        found.append(Case(dtype, num, 1024, more, bits, group))
    found.append(Case(dtype, rows[0], 128, first, bits, group))
    return tuple(found)


def timed_of(
    *,
    rows: Sequence[int] = TIMED_ROWS,
    outs: Outs,
    num_in: Sequence[int],
    is_packed: bool = True,
) -> tuple[Case, ...]:
    """A case for each number of bits, of rows, and shape; `num_in` is that of each of `outs`."""
    bits = BITS if is_packed else (0,)
    return tuple(
        Case("bfloat16", num, columns, shape, many, 64 if many else 0)
        for many, (shape, columns), num in product(bits, zip(outs, num_in, strict=True), rows)
    )
