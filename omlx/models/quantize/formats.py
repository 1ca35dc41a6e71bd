"""The formats that a matrix can have in an MLX model, and what each takes.

Knows nothing about values or models; imports no mlx.
"""

from collections.abc import Mapping
from dataclasses import dataclass

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
AFFINE_GROUPS = (32, 64, 128)
SCALE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, order=True)
class Format:
    """How a matrix is packed: the fields that mlx-lm has in config.json for it.

    "affine" has a scale and a bias in the model's float type for each group, the others one byte.
    """

    mode: str
    bits: int
    group: int

    @property
    def label(self) -> str:
        """What reports call it, such as "4/64" or "mxfp4"."""
        return f"{self.bits}/{self.group}" if self.mode == "affine" else self.mode

    @property
    def entry(self) -> dict[str, object]:
        """The entry of config.json."""
        return {"group_size": self.group, "bits": self.bits, "mode": self.mode}

    def nbytes(self, num_values: int, dtype: str) -> int:
        """Bytes of so many values, scales included."""
        per_group = 2 * SCALE_BYTES[dtype] if self.mode == "affine" else 1
        return num_values * self.bits // 8 + num_values // self.group * per_group

    def fits(self, columns: int) -> bool:
        """Whether rows of so many values can have it."""
        # Packed rows are whole words of 32 bits.
        return columns % self.group == 0 and columns * self.bits % 32 == 0


AFFINE = tuple(Format("affine", bits, group) for bits in AFFINE_BITS for group in AFFINE_GROUPS)
FLOATS = (Format("mxfp4", 4, 32), Format("nvfp4", 4, 16), Format("mxfp8", 8, 32))
BY_LABEL: Mapping[str, Format] = {one.label: one for one in (*AFFINE, *FLOATS)}


def candidates(columns: int) -> list[Format]:
    """The formats for rows of so many values, smallest first for 16-bit scales; none for odd
    rows, which stay as they are."""
    found = [one for one in BY_LABEL.values() if one.fits(columns)]
    return sorted(found, key=lambda one: (one.nbytes(2**20, "float16"), one))
