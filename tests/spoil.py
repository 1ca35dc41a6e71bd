"""Wrong state, put where the cache keeps it: the negative controls of comparisons of logits.

In memory nothing checks a payload, so it is used and the logits must show it. On disk every file
is verified, so it must be a miss.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.cache.hashing import chain_hashes, token_array
from omlx.cache.leaves import Payload
from omlx.cache.memory import Entry
from omlx.storage.layout import BlockHash, BlockKey, RootHash, block_path
from tests.exact import BLOCK, prefix_of
from tests.fakes.harness import Harness

Entries = Sequence[Entry[Payload]]
_WORDS = {2: mx.uint16, 4: mx.uint32}


def blocks(harness: Harness, prompt: Sequence[int]) -> Entries:
    """The full blocks of a prompt in memory, from its beginning."""
    tiers = prefix_of(harness)._tiers
    names = chain_hashes(tiers.root, token_array(prompt[:-1]), BLOCK)
    entries = [tiers.memory.get(name) for name in names]
    return [entry for entry in entries if entry is not None]


def snapshots(harness: Harness, prompt: Sequence[int]) -> Entries:
    """The snapshots of a prompt and its reply in memory, by position."""
    tiers = prefix_of(harness)._tiers
    names = chain_hashes(tiers.root, token_array(prompt[:-1]), BLOCK)
    parents = [BlockHash(tiers.root), *names]
    entries = [entry for parent in parents for entry in tiers.snapshots.children(parent)]
    return sorted(entries, key=lambda entry: entry.payload.count)


def put(entry: Entry[Payload], arrays: Sequence[Any]) -> None:
    """Replace what an entry holds, not what it says it is."""
    entry.payload = Payload(entry.payload.count, tuple(arrays))


def swap(entries: Entries, last: int, others: Entries) -> None:
    """Exchange entry `last` with that of another prompt.

    Not with one of the same prompt: keys know their position and a sum knows no order, so that
    two blocks in each other's place make no difference but of rounding.
    """
    one, two = entries[last], others[last]
    arrays = one.payload.arrays
    put(one, two.payload.arrays)
    put(two, arrays)


def element(entries: Entries, last: int, others: Entries) -> None:
    """Flip one bit in entry `last`: the sign of its largest number."""
    arrays = list(entries[last].payload.arrays)
    flat: Any = arrays[0].reshape(-1)
    place = int(mx.argmax(mx.abs(flat)).item())
    words = np.array(flat.view(_WORDS[flat.itemsize]))
    words[place] ^= 1 << (8 * flat.itemsize - 1)
    arrays[0] = mx.array(words).view(flat.dtype).reshape(arrays[0].shape)
    mx.eval(arrays)
    put(entries[last], arrays)


def drop(entries: Entries, last: int, others: Entries) -> None:
    """Leave out a block in the middle: those after it, to `last`, come one place too early."""
    for i in range(1, last):
        put(entries[i], entries[i + 1].payload.arrays)


def drop_snapshot(entries: Entries, last: int, others: Entries) -> None:
    """Use the one before in the place of entry `last`, as if that had never been taken."""
    put(entries[last], entries[last - 1].payload.arrays)


OF_BLOCKS = {"swap": swap, "element": element, "drop": drop}
OF_SNAPSHOTS = {"swap": swap, "element": element, "drop": drop_snapshot}


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one prompt, by the keys of what memory holds."""

    folder: Path
    root: RootHash
    blocks: tuple[BlockKey, ...]
    snapshots: tuple[BlockKey, ...]

    @classmethod
    def of(cls, harness: Harness, folder: Path, prompt: Sequence[int]) -> "Files":
        """Those that an engine has written or will write."""
        return cls(
            folder,
            prefix_of(harness)._tiers.root,
            tuple(entry.key for entry in blocks(harness, prompt)),
            tuple(entry.key for entry in snapshots(harness, prompt)),
        )

    def path(self, key: BlockKey) -> Path:
        """Where a block or snapshot lies."""
        return block_path(self.folder, self.root, key)


def swap_files(one: Path, two: Path) -> None:
    """Each under the other's name."""
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


def flip_bit(path: Path) -> None:
    """One bit of the last number of each section of a file: not all need be read."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for name, section in header.items():
        if name != "__metadata__":
            data[start + section["data_offsets"][1] - 1] ^= 1
    path.write_bytes(data)
