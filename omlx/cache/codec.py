"""Layer caches to block payloads and back, for the cache classes of mlx-lm.

Knows nothing about hashing, tiers or files. Every function runs on the engine thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import KVCache

from omlx.storage.record import SectionSpec

# safetensors names of the dtypes that a key or value may have
_DTYPES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
_mx: Any = mx  # for calls that its stubs leave untyped
LayerSlice = tuple[mx.array, mx.array]  # keys [1, H, n, Dk], values [1, H, n, Dv]
Bytes = npt.NDArray[np.uint8]


class UncacheableError(Exception):
    """The model's layer caches can't be stored in blocks; the message names the class."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of one layer: keys or values with `heads` heads of `width`."""

    layer: int
    name: str
    heads: int
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Payload:
    """The state of one block: one array [leaves, heads, count, width] per group of equal leaves.

    The arrays are being computed or are there, and own their storage: a payload holds exactly its
    bytes.
    """

    count: int
    arrays: tuple[mx.array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for a in self.arrays)


class Codec:
    """Packs and restores the layer caches of one model.

    Leaves of equal shape and type share one array, so that a block is few arrays, layer-major:
    one section of a file each, and one copy for a whole block.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = tuple(leaves)
        groups: dict[tuple[int, int, str], list[int]] = {}
        for i, leaf in enumerate(self.leaves):
            groups.setdefault((leaf.heads, leaf.width, leaf.dtype), []).append(i)
        self._groups = list(groups.items())
        self._mx_dtypes = {name: dtype for dtype, name in _DTYPES.items()}
        self.is_zero_copy = self._views_are_zero_copy()

    @classmethod
    def from_caches(cls, caches: Sequence[Any]) -> "Codec":
        """The codec for caches that have seen at least one token; UncacheableError."""
        leaves: list[Leaf] = []
        for layer, cache in enumerate(caches):
            kind = cast(type[object], type(cache))
            if kind is not KVCache:
                raise UncacheableError(f"{kind.__name__} (layer {layer}) has no block form")
            for name, array in (("k", cache.keys), ("v", cache.values)):
                if array is None or array.dtype not in _DTYPES:
                    raise UncacheableError(f"layer {layer} keeps its {name} in an unknown form")
                heads, width = array.shape[1], array.shape[3]
                leaves.append(Leaf(layer, name, heads, width, _DTYPES[array.dtype]))
        if not leaves:
            raise UncacheableError("the model keeps no state")
        return cls(leaves)

    def layout(self) -> dict[str, str]:
        """What the bytes of a block mean, as text: part of the root hash and of root.json."""
        groups = [
            f"kv.{g}={dtype}[{len(members)},{heads},count,{width}]:"
            + ",".join(f"{self.leaves[i].layer}{self.leaves[i].name}" for i in members)
            for g, ((heads, width, dtype), members) in enumerate(self._groups)
        ]
        return {"sections": ";".join(groups)}

    def specs(self, count: int) -> list[SectionSpec]:
        """The sections of a block of `count` tokens, in the order of Payload.arrays."""
        return [
            SectionSpec(f"kv.{g}", dtype, (len(members), heads, count, width))
            for g, ((heads, width, dtype), members) in enumerate(self._groups)
        ]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of state that one token needs in all layers."""
        return sum(spec.nbytes for spec in self.specs(1))

    def pack(self, layers: Sequence[LayerSlice], counts: Sequence[int]) -> list[Payload]:
        """Cut one stretch of a row into payloads of `counts` tokens; counts sum to its length."""
        flat = [array for pair in layers for array in pair]
        blocks: list[list[mx.array]] = [[] for _ in counts]
        for _, members in self._groups:
            stretch = mx.stack([flat[i][0] for i in members])
            start = 0
            for arrays, count in zip(blocks, counts, strict=True):
                arrays.append(mx.contiguous(stretch[:, :, start : start + count, :]))
                start += count
        payloads = [Payload(count, tuple(a)) for count, a in zip(counts, blocks, strict=True)]
        _mx.async_eval([p.arrays for p in payloads])
        return payloads

    def restore(self, parts: Sequence[tuple[Payload, int]]) -> list[KVCache]:
        """Layer caches that hold the first `take` tokens of each (payload, take), in order.

        Their buffers are over-allocated as those of a live cache, since an attention kernel may be
        chosen by the shape of the buffer.
        """
        total = sum(take for _, take in parts)
        room = -total % KVCache.step
        arrays: dict[int, mx.array] = {}
        for g, ((heads, width, dtype), members) in enumerate(self._groups):
            spare = mx.zeros((1, heads, room, width), dtype=self._mx_dtypes[dtype])
            for position, leaf in enumerate(members):
                pieces = [p.arrays[g][position : position + 1, :, :take, :] for p, take in parts]
                arrays[leaf] = mx.concatenate([*pieces, spare], axis=2)
        caches: list[KVCache] = []
        for layer in range(len(self.leaves) // 2):
            cache = KVCache()
            cache.keys, cache.values = arrays[2 * layer], arrays[2 * layer + 1]
            cache.offset = total
            # Layer by layer, so that pieces are freed while later layers are put together.
            _mx.async_eval(cache.keys, cache.values)
            caches.append(cache)
        return caches

    def read_views(self, payload: Payload) -> list[memoryview]:
        """The bytes of a payload, zero-copy where the device shares memory with the CPU."""
        return [_as_bytes(a).data.cast("B") for a in payload.arrays]

    def allocate(self, count: int) -> "Landing":
        """Writable buffers for one block that will be read from disk."""
        return Landing(self, count, zero_copy=self.is_zero_copy)

    def mx_dtype(self, name: str) -> mx.Dtype:
        """The mlx dtype of a safetensors dtype name."""
        return self._mx_dtypes[name]

    @staticmethod
    def _views_are_zero_copy() -> bool:
        probe = mx.zeros((8,), dtype=mx.uint8)
        view = _as_bytes(probe)
        if not view.flags.writeable:
            return False
        view[0] = 1
        return bool(probe[0].item() == 1)


def _as_bytes(array: mx.array) -> Bytes:
    """The storage of an array, seen by the CPU."""
    view = array.view(mx.uint8)
    _mx.eval(view)
    return np.asarray(cast(Any, view))


class Landing:
    """Where the bytes of one block arrive: into the arrays themselves, or through host buffers."""

    def __init__(self, codec: Codec, count: int, *, zero_copy: bool) -> None:
        self._specs = codec.specs(count)
        self._dtypes = [codec.mx_dtype(spec.dtype) for spec in self._specs]
        self._count = count
        self._arrays: list[mx.array] | None = None
        self._host: list[Bytes]
        if zero_copy:
            pairs = zip(self._specs, self._dtypes, strict=True)
            self._arrays = [mx.zeros(spec.shape, dtype=dtype) for spec, dtype in pairs]
            _mx.eval(self._arrays)
            self._host = [_as_bytes(a).reshape(-1) for a in self._arrays]
        else:
            self._host = [np.empty(spec.nbytes, dtype=np.uint8) for spec in self._specs]

    def sections(self) -> list[tuple[SectionSpec, memoryview]]:
        """Specs and writable buffers; any thread may fill the buffers."""
        return [(s, h.data) for s, h in zip(self._specs, self._host, strict=True)]

    def payload(self) -> Payload:
        """The filled block (engine thread)."""
        arrays = self._arrays
        if arrays is None:
            arrays = [
                mx.reshape(mx.array(host).view(dtype), spec.shape)
                for spec, dtype, host in zip(self._specs, self._dtypes, self._host, strict=True)
            ]
            _mx.eval(arrays)
        return Payload(self._count, tuple(arrays))
