"""All names of the store: directories, block files, temporary files.

Knows nothing about what is in the files or whether they exist.
"""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""SHA-256 that names a block: its tokens and all before them, of one model in one layout."""

RootHash = NewType("RootHash", bytes)
"""SHA-256 that is the parent of every first block: model, layout and format version."""

HASH_BYTES = 32
MAX_COUNT = 65536
BLOCKS = "blocks"
ROOT_FILE = "root.json"
DAY_FILE = "written-today.json"
SUFFIX = ".safetensors"

_UP_TO_MAX_COUNT = (  # in the pattern, since a start parses a hundred thousand names
    "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-6])"
)
_BLOCK_NAME = re.compile(
    rf"[0-9a-f]{{32}}\.[0-9a-f]{{16}}\.{_UP_TO_MAX_COUNT}(\.state)?\.safetensors"
)
_STATE_SUFFIX = ".state" + SUFFIX
_TEMP_NAME = re.compile(r"\.tmp-([1-9][0-9]{0,9})-([0-9]{1,19})")
_ROOT_NAME = re.compile(r"[0-9a-f]{16}")
_SHARD_NAME = re.compile(r"[0-9a-f]{2}")


class BlockKind(Enum):
    """What a file holds of a block: what its tokens added, or all that recurrent layers keep.

    A STATE is a snapshot after the last token of the block, or tail, that its name names.
    """

    BLOCK = "block"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class BlockKey:
    """What a block file is found by, within one root; `count` is its number of tokens."""

    parent: BlockHash
    name: BlockHash
    count: int
    kind: BlockKind = BlockKind.BLOCK


@dataclass(frozen=True, slots=True)
class BlockName:
    """What a file name says: hexadecimal heads of a block's name and parent, count and kind."""

    name32: str
    parent16: str
    count: int
    kind: BlockKind = BlockKind.BLOCK

    @property
    def name16(self) -> str:
        """The head of the name as the files of its children give it."""
        return self.name32[:16]

    @property
    def filename(self) -> str:
        """The file name that parses to this."""
        suffix = _STATE_SUFFIX if self.kind is BlockKind.STATE else SUFFIX
        return f"{self.name32}.{self.parent16}.{self.count}{suffix}"


def block_name(key: BlockKey) -> BlockName:
    """What the file name of `key` says."""
    return BlockName(key.name.hex()[:32], key.parent.hex()[:16], key.count, key.kind)


def kind_of_name(filename: str) -> BlockKind | None:
    """What a file name says that the file holds, or None where it is no name of the store's."""
    match = _BLOCK_NAME.fullmatch(filename)
    if match is None:
        return None
    return BlockKind.BLOCK if match.lastindex is None else BlockKind.STATE


def parse_block_name(filename: str) -> BlockName | None:
    """What a file name says, or None where it is no name of the store's."""
    kind = kind_of_name(filename)
    if kind is None:
        return None
    name32, parent16, count = filename.split(".")[:3]
    return BlockName(name32, parent16, int(count), kind)


def chain_keys(place: str) -> tuple[str, str]:
    """What ties blocks into chains: a file's own key and its parent's, from its place.

    `place` is the path below the directory; every root has keys of its own. A state's own key
    is that of the block at whose end it was taken.
    """
    root16 = place[7:23]
    return root16 + place[27:43], root16 + place[60:76]


def root_of(place: str) -> str:
    """The name of the root that a place lies in, or ""."""
    parts = place.split("/", 2)
    return parts[1] if len(parts) == 3 and parts[0] == BLOCKS and is_root_name(parts[1]) else ""


def root_name(root: RootHash) -> str:
    """The name of a root's directory."""
    return root.hex()[:16]


def root_dir(directory: Path, root: RootHash) -> Path:
    """Where the blocks of one root are."""
    return directory.joinpath(BLOCKS, root_name(root))


def shard_dir(directory: Path, root: RootHash, parent: BlockHash) -> Path:
    """Where the children of `parent` are."""
    return directory.joinpath(BLOCKS, root_name(root), parent.hex()[:2])


def block_path(directory: Path, root: RootHash, key: BlockKey) -> Path:
    """Where the file of `key` is."""
    shard = key.parent.hex()[:2]
    return directory.joinpath(BLOCKS, root_name(root), shard, block_name(key).filename)


def temp_name(pid: int, counter: int) -> str:
    """The name of a file that process `pid` is still writing."""
    return f".tmp-{pid}-{counter}"


def parse_temp_name(filename: str) -> int | None:
    """The process that writes a temporary file, or None where the name is not one."""
    match = _TEMP_NAME.fullmatch(filename)
    return None if match is None else int(match[1])


def is_root_name(name: str) -> bool:
    """Whether a directory below `blocks` is a root's."""
    return _ROOT_NAME.fullmatch(name) is not None


def is_shard_name(name: str) -> bool:
    """Whether a directory below a root holds blocks."""
    return _SHARD_NAME.fullmatch(name) is not None
