"""Turns the packed rows of GGUF tensors into floats, or into MLX's own packing without rounding.

Knows nothing about files, names or architectures.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from omlx.errors import ModelError
from omlx.models.gguf_read import BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q8_0, Quant

GROUP = 32
Floats = npt.NDArray[np.float32]

_BLOCKS = {
    Q4_0: np.dtype([("scale", "<f2"), ("codes", "u1", (GROUP // 2,))]),
    Q4_1: np.dtype([("scale", "<f2"), ("bias", "<f2"), ("codes", "u1", (GROUP // 2,))]),
    Q5_0: np.dtype([("scale", "<f2"), ("high", "<u4"), ("codes", "u1", (GROUP // 2,))]),
    Q5_1: np.dtype(
        [("scale", "<f2"), ("bias", "<f2"), ("high", "<u4"), ("codes", "u1", (GROUP // 2,))]
    ),
    Q4_K: np.dtype(
        [("scale", "<f2"), ("bias", "<f2"), ("packed", "u1", (12,)), ("codes", "u1", (128,))]
    ),
    Q5_K: np.dtype(
        [
            ("scale", "<f2"),
            ("bias", "<f2"),
            ("packed", "u1", (12,)),
            ("high", "u1", (32,)),
            ("codes", "u1", (128,)),
        ]
    ),
    Q8_0: np.dtype([("scale", "<f2"), ("codes", "i1", (GROUP,))]),
}
# What has an exact form in MLX: scale * code + bias for each 32 values.
BITS = {Q4_0: 4, Q4_1: 4, Q5_0: 5, Q5_1: 5, Q4_K: 4, Q5_K: 5, Q8_0: 8}


class FloatType(Enum):
    """A float type of safetensors; the value is what config.json calls it."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def tag(self) -> str:
        """What a safetensors header calls it."""
        return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[self.value]

    @property
    def nbytes(self) -> int:
        """Bytes of one value."""
        return 4 if self is FloatType.FLOAT32 else 2


@dataclass(frozen=True, slots=True)
class Affine:
    """Rows as value = scale * code + bias, one scale and bias for each group of 32 codes."""

    codes: npt.NDArray[np.uint8]
    scales: Floats
    biases: Floats


@np.errstate(all="ignore")
def affine(quant: Quant, data: bytes, num_rows: int) -> Affine:
    """Quantized rows in affine form; every number is exact in float32."""
    blocks: npt.NDArray[Any] = np.frombuffer(data, _BLOCKS[quant]).reshape(num_rows, -1)
    if quant in (Q4_K, Q5_K):
        return _superblocks(blocks, num_rows, has_high=quant is Q5_K)
    scales: Floats = blocks["scale"].astype(np.float32)
    raw: npt.NDArray[np.uint8] = blocks["codes"].view(np.uint8)
    if quant is Q8_0:
        # Flipping the top bit of a signed byte adds 128.
        codes = raw ^ np.uint8(0x80)
        biases = scales * np.float32(-128)
    else:
        # Byte i of a block holds the codes i (low half) and i + 16 (high half).
        codes = np.concatenate([raw & np.uint8(15), raw >> np.uint8(4)], axis=-1)
        if quant in (Q5_0, Q5_1):
            places = np.arange(GROUP, dtype=np.uint32)
            bits = blocks["high"][..., None] >> places & np.uint32(1)
            codes = codes | (bits.astype(np.uint8) << np.uint8(4))
        is_biased = quant in (Q4_1, Q5_1)
        middle = np.float32(-16 if quant is Q5_0 else -8)
        biases = blocks["bias"].astype(np.float32) if is_biased else scales * middle
    return Affine(codes.reshape(num_rows, -1), scales, biases)


def _superblocks(blocks: npt.NDArray[Any], num_rows: int, *, has_high: bool) -> Affine:
    """Blocks of eight groups, whose scales and offsets are six bits each of a common one."""
    low, middle, high = (blocks["packed"][..., at : at + 4] for at in (0, 4, 8))
    six, four = np.uint8(63), np.uint8(15)
    scale_codes = np.concatenate(
        [low & six, (high & four) | (low >> np.uint8(6) << np.uint8(4))], axis=-1
    )
    offset_codes = np.concatenate(
        [middle & six, (high >> np.uint8(4)) | (middle >> np.uint8(6) << np.uint8(4))], axis=-1
    )
    scales = blocks["scale"].astype(np.float32)[..., None] * scale_codes.astype(np.float32)
    offsets = blocks["bias"].astype(np.float32)[..., None] * offset_codes.astype(np.float32)
    # 32 bytes hold two groups: the first in their low halves, the second in their high ones.
    raw = blocks["codes"].reshape(*blocks.shape, 4, GROUP)
    codes = np.stack([raw & four, raw >> np.uint8(4)], axis=-2).reshape(*blocks.shape, 8, GROUP)
    if has_high:
        places = np.arange(8, dtype=np.uint8)[:, None]
        bits = blocks["high"][..., None, :] >> places & np.uint8(1)
        codes = codes | (bits << np.uint8(4))
    shape = num_rows, -1
    return Affine(codes.reshape(shape), scales.reshape(shape), -offsets.reshape(shape))


@np.errstate(all="ignore")
def floats(quant: Quant, data: bytes, num_rows: int) -> Floats:
    """Rows as float32: what the file says, exactly."""
    if quant is F32:
        return np.frombuffer(data, "<f4").reshape(num_rows, -1)
    if quant is F16:
        return np.frombuffer(data, "<f2").astype(np.float32).reshape(num_rows, -1)
    if quant is BF16:
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(num_rows, -1)
    if quant not in (Q4_0, Q4_1, Q8_0):
        return _by_package(quant, data, num_rows)
    rows = affine(quant, data, num_rows)
    codes = rows.codes.reshape(*rows.scales.shape, GROUP)
    scales = rows.scales[..., None]
    if quant is Q4_1:
        values = codes.astype(np.float32) * scales + rows.biases[..., None]
    else:
        # Signed codes times the scale: no sum, so nothing is rounded.
        middle = np.float32(128 if quant is Q8_0 else 8)
        values = (codes.astype(np.float32) - middle) * scales
    return values.reshape(num_rows, -1)


def _by_package(quant: Quant, data: bytes, num_rows: int) -> Floats:
    """Rows of the types that only the gguf package knows."""
    # Imported only here: most files need none of it.
    import gguf

    kind = getattr(gguf.GGMLQuantizationType, quant.name)
    rows = np.frombuffer(data, np.uint8).reshape(num_rows, -1)
    return np.asarray(gguf.quants.dequantize(rows, kind), np.float32)


def packed(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """MLX's packing: code i of a row in bits [i*bits, (i+1)*bits) of little-endian words."""
    if bits == 5:
        # Eight codes make five bytes.
        eight = codes.reshape(codes.shape[0], -1, 8).astype(np.uint64)
        whole = (eight << (np.arange(8, dtype=np.uint64) * np.uint64(5))).sum(-1, dtype=np.uint64)
        as_bytes = whole.astype("<u8").view(np.uint8).reshape(*whole.shape, 8)[..., :5]
        return np.ascontiguousarray(as_bytes).reshape(codes.shape[0], -1).view("<u4")
    if bits == 8:
        return codes.view("<u4")
    return (codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)).view("<u4")


@np.errstate(all="ignore")
def to_bytes(values: Floats, kind: FloatType, *, name: str) -> bytes:
    """Values in a float type, rounded to nearest even; ModelError where one is too large."""
    if kind is FloatType.FLOAT32:
        return values.astype("<f4", copy=False).tobytes()
    if kind is FloatType.FLOAT16:
        half = values.astype("<f2")
        if np.isinf(half).sum() > np.isinf(values).sum():
            raise ModelError(
                f"{name} holds values too large for float16", hint="Use bfloat16 or float32."
            )
        return half.tobytes()
    words = np.ascontiguousarray(values, "<f4").view("<u4")
    half_up = np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
    # Rounding could carry a NaN into infinity: those keep their upper half, made quiet.
    rounded = np.where(np.isnan(values), words | np.uint32(0x400000), words + half_up)
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def unrotated(data: bytes, *, num_heads: int, row_bytes: int) -> bytes:
    """Rows of whole heads from llama.cpp's rotary order back to Hugging Face's.

    The file has rotary dimensions i and i + d/2 side by side; mlx-lm wants halves.
    """
    rows = np.frombuffer(data, np.uint8).reshape(num_heads, -1, 2, row_bytes)
    return rows.swapaxes(1, 2).tobytes()


def rotated(data: bytes, *, num_heads: int, row_bytes: int) -> bytes:
    """Rows of whole heads in llama.cpp's rotary order: what `unrotated` turns back."""
    rows = np.frombuffer(data, np.uint8).reshape(num_heads, 2, -1, row_bytes)
    return rows.swapaxes(1, 2).tobytes()
