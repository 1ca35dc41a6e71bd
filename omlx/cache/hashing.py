"""Names of blocks: a chain of SHA-256 over token ids, from a root that is the model and its layout.

Knows nothing about where blocks are kept.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from omlx.cache.salting import hashed
from omlx.storage.layout import BlockHash, RootHash

FORMAT_VERSION = 1
TokenArray = npt.NDArray[np.uint32]
ExtraKeys = Sequence[tuple[str, bytes]]


def token_array(token_ids: Sequence[int] | TokenArray) -> TokenArray:
    """Token ids as one little-endian uint32 array, shape (n,); ValueError outside 0..2^32-1."""
    if isinstance(token_ids, np.ndarray):
        return np.ascontiguousarray(token_ids, dtype="<u4")
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < 2**32):
        raise ValueError("token ids must lie in 0..2^32-1")
    return np.fromiter(token_ids, dtype="<u4", count=len(token_ids))


def tokens_of_bytes(data: bytes) -> TokenArray:
    """Token ids as a block file has them, shape (n,); a view."""
    return np.frombuffer(data, dtype="<u4")


def compute_root_hash(fingerprint: str, layout: Mapping[str, str]) -> RootHash:
    """The first parent of all blocks of a model: format version, fingerprint, cache layout."""
    fields = [(b"V", FORMAT_VERSION.to_bytes(4, "little")), (b"F", bytes.fromhex(fingerprint))]
    for key in sorted(layout):
        fields += [(b"L", key.encode()), (b"l", layout[key].encode())]
    return RootHash(hashed(*fields))


def compute_block_hash(
    model: RootHash,
    parent_hash: BlockHash | None,
    token_ids: Sequence[int] | TokenArray,
    extra_keys: ExtraKeys = (),
) -> BlockHash:
    """The name of the block of `token_ids` after `parent_hash` (None: the first block of `model`).

    `extra_keys` are (tag, digest) pairs for what token ids don't say, such as an image's pixels.
    """
    tokens = token_array(token_ids)
    parent = parent_hash if parent_hash is not None else model
    size = len(tokens).to_bytes(4, "little")
    extra: list[tuple[bytes, bytes]] = []
    for key, value in extra_keys:
        extra += [(b"K", key.encode()), (b"k", value)]
    return BlockHash(hashed((b"P", parent), (b"C", size), (b"T", tokens.data.cast("B")), *extra))


def chain_hashes(model: RootHash, tokens: TokenArray, block_size: int) -> list[BlockHash]:
    """The names of all full blocks of a sequence, in order."""
    names: list[BlockHash] = []
    parent: BlockHash | None = None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = compute_block_hash(model, parent, tokens[start : start + block_size])
        names.append(parent)
    return names


def common_prefix(a: TokenArray, b: TokenArray) -> int:
    """How many leading tokens are equal."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
