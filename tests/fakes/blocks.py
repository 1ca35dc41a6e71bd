"""Small blocks, a clock that is set by hand, and a store over any file system, for tests.

They know nothing about mlx; a block's content follows from its seed.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from omlx.storage.budget import Budget
from omlx.storage.fs import FileSystem
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, RootHash, block_path
from omlx.storage.record import SectionSpec
from omlx.storage.store import BlockStore, PutResult
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem

DIRECTORY = Path("/cache")
ROOT = RootHash(hashlib.sha256(b"root").digest())
OTHER_ROOT = RootHash(hashlib.sha256(b"other root").digest())
MANY = 1 << 40


@dataclass
class Clock:
    """Seconds that pass only when a test says so."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Block:
    """A block with two sections, as a caller of the store has it."""

    key: BlockKey
    tokens: bytes
    specs: tuple[SectionSpec, ...]
    data: tuple[bytes, ...]

    @property
    def sections(self) -> list[tuple[SectionSpec, memoryview]]:
        """What `put` takes."""
        return [(s, memoryview(d)) for s, d in zip(self.specs, self.data, strict=True)]

    def path(self, root: RootHash = ROOT, directory: Path = DIRECTORY) -> Path:
        """Where its file is."""
        return block_path(directory, root, self.key)


def make_block(parent: bytes, seed: int, count: int = 4, width: int = 8) -> Block:
    """A block of `count` tokens after `parent`; `width` makes it larger."""
    source = random.Random(seed)
    tokens = b"".join(source.randrange(50_000).to_bytes(4, "little") for _ in range(count))
    specs = (
        SectionSpec("0.k", "BF16", (2, count, width)),
        SectionSpec("0.v", "F32", (1, count, width)),
    )
    name = BlockHash(hashlib.sha256(parent + tokens).digest())
    data = tuple(source.randbytes(spec.nbytes) for spec in specs)
    return Block(BlockKey(BlockHash(parent), name, count), tokens, specs, data)


def make_state(block: Block, seed: int = 7, width: int = 8) -> Block:
    """A snapshot at the end of a block or tail."""
    source = random.Random(seed)
    specs = (SectionSpec("0.s", "F32", (1, width, 3)), SectionSpec("2.s", "F32", (width,)))
    data = tuple(source.randbytes(spec.nbytes) for spec in specs)
    return Block(replace(block.key, kind=BlockKind.STATE), block.tokens, specs, data)


def make_chain(length: int, *, root: RootHash = ROOT, seed: int = 0, width: int = 8) -> list[Block]:
    """Blocks of which each continues the one before."""
    blocks: list[Block] = []
    parent: bytes = root
    for i in range(length):
        blocks.append(make_block(parent, seed * 1000 + i, width=width))
        parent = blocks[-1].key.name
    return blocks


@dataclass
class Shelf:
    """A store with the parts that a test looks at."""

    fs: FileSystem
    clock: Clock = field(default_factory=Clock)
    directory: Path = DIRECTORY
    root: RootHash = ROOT
    max_bytes: int = MANY
    min_free_bytes: int = 0
    max_state_bytes: int | None = None
    max_daily_bytes: int | None = None
    is_alive: Callable[[int], bool] = lambda pid: True
    pid: int | None = None
    budget: Budget = field(init=False)
    store: BlockStore = field(init=False)

    def __post_init__(self) -> None:
        self.budget = Budget(
            self.max_bytes,
            self.min_free_bytes,
            self.fs,
            self.directory,
            clock=self.clock,
            max_state_bytes=self.max_state_bytes,
            is_alive=self.is_alive,
            pid=self.pid,
        )
        self.store = BlockStore(
            self.directory,
            self.root,
            fs=self.fs,
            budget=self.budget,
            clock=self.clock,
            describe={"model": "tiny", "layout": {"block_size": "4"}},
            timer=lambda: 0.0,
            max_daily_bytes=self.max_daily_bytes,
        )

    def put(self, block: Block) -> PutResult:
        """Put one block."""
        return self.store.put(block.key, block.tokens, block.sections)

    def get(self, block: Block) -> tuple[bytes, ...] | None:
        """The content of the sections as read back, or None for a miss."""
        buffers = [bytearray(spec.nbytes) for spec in block.specs]
        views = [(s, memoryview(b)) for s, b in zip(block.specs, buffers, strict=True)]
        found = self.store.read(block.key, block.tokens, views)
        return tuple(bytes(buffer) for buffer in buffers) if found else None

    def get_some(self, block: Block, idx: int) -> bytes | None:
        """The content of one section alone, or None for a miss."""
        spec = block.specs[idx]
        buffer = bytearray(spec.nbytes)
        found = self.store.read(block.key, block.tokens, [(spec, memoryview(buffer))])
        return bytes(buffer) if found else None

    def has(self, block: Block) -> bool:
        """Whether the store says it has the block."""
        return self.store.contains(block.key)


def shelf_and_fs(max_bytes: int = MANY) -> tuple[Shelf, FaultFileSystem, MemoryFileSystem]:
    """A store whose calls a test lets fail, and the memory behind them."""
    clock = Clock()
    memory = MemoryFileSystem(clock)
    fs = FaultFileSystem(memory)
    return Shelf(fs, clock, max_bytes=max_bytes), fs, memory
