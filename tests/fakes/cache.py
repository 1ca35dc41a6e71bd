"""A whole prefix cache over a file system in memory, whose I/O jobs run when a test says so.

Rows are played by `compute`: they look up, check what was restored, and store what is missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omlx.cache.block import Chain
from omlx.cache.codec import Codec
from omlx.cache.cost import LoadCost
from omlx.cache.hashing import token_array
from omlx.cache.io import DiskTier
from omlx.cache.leaves import Payload, StateLeaf
from omlx.cache.lookup import Hit, Tiers
from omlx.cache.memory import Entry, MemoryTier
from omlx.cache.policy import StorePolicy
from omlx.cache.prefix import PrefixCache
from omlx.cache.snapshots import Snapshots
from omlx.cache.writeback import WriteBack
from omlx.storage.budget import Budget
from omlx.storage.fs import FileSystem
from omlx.storage.layout import BlockHash, BlockKey, block_path
from omlx.storage.store import BlockStore
from tests.fakes import state
from tests.fakes.blocks import DIRECTORY, MANY, ROOT, Clock
from tests.fakes.executor import ManualExecutor
from tests.fakes.fs import MemoryFileSystem

BLOCK = 4
BLOCK_BYTES = BLOCK * state.BYTES_PER_TOKEN


class BreakableCodec(Codec):
    """A codec that raises once when it is told to."""

    is_broken = False

    def pack(
        self, caches: Sequence[Any], start: int, counts: Sequence[int], *, is_own: bool = False
    ) -> list[Payload]:
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("out of memory")
        return super().pack(caches, start, counts, is_own=is_own)


@dataclass
class Rig:
    """One prefix cache; `start` gives it an empty memory tier over the same files."""

    memory_bytes: int = MANY
    has_disk: bool = True
    max_queued_bytes: int = MANY
    max_disk_bytes: int = MANY
    delay_s: float = 2.0
    drain_s: float = 10.0
    block_size: int = BLOCK
    states: Sequence[StateLeaf] = ()
    window: int = 0  # how far a second layer sees, if there is one
    cost: LoadCost = field(default_factory=LoadCost)
    clock: Clock = field(default_factory=Clock)
    inbox: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fs = MemoryFileSystem(self.clock)
        self.start()

    def twin(self) -> "Rig":
        """Another process on the same directory."""
        other = Rig(clock=self.clock)
        other.fs = self.fs
        other.start()
        return other

    def start(self, fs: FileSystem | None = None) -> None:
        """Begin as a new process would, maybe over a file system that fails."""
        over = fs or self.fs
        self.inbox.clear()
        self.readers, self.writer = ManualExecutor(), ManualExecutor()
        self.disk = self._disk(over) if self.has_disk else None
        self.codec = codec = BreakableCodec(state.leaves(self.window), self.states)
        self.memory = MemoryTier(self.memory_bytes, BlockHash(ROOT))
        self.writeback = WriteBack(
            codec,
            self.disk,
            delay_s=self.delay_s,
            drain_s=self.drain_s,
            is_through=not self.memory_bytes,
        )
        self.tiers = Tiers(
            ROOT,
            codec,
            self.memory,
            self.writeback,
            self.disk,
            self.block_size,
            Snapshots(self.memory_bytes),
            self.cost,
        )
        self.prefix = PrefixCache(self.tiers, clock=self.clock)

    def _disk(self, fs: FileSystem) -> DiskTier:
        budget = Budget(
            self.max_disk_bytes, 0, fs, DIRECTORY, clock=self.clock, is_alive=lambda pid: True
        )
        store = BlockStore(DIRECTORY, ROOT, fs=fs, budget=budget, clock=self.clock, describe={})
        return DiskTier(
            store,
            budget,
            self.inbox.append,
            max_queued_bytes=lambda: self.max_queued_bytes,
            readers=self.readers,
            writer=self.writer,
        )

    def answer(self) -> int:
        """Run the jobs that the I/O threads have posted; how many."""
        jobs, self.inbox[:] = list(self.inbox), []
        for job in jobs:
            job()
        return len(jobs)

    def settle(self) -> None:
        """Run everything that is on its way, until nothing is."""
        while self.readers.run() + self.writer.run() + self.answer():
            pass

    def look_up(self, tokens: Sequence[int], salt: str = "") -> Hit:
        """Look a sequence up, wait for the disk, and check the state that was found."""
        hits: list[Hit] = []
        self.prefix.look_up(token_array(tokens), hits.append, salt=salt)
        self.settle()
        (hit,) = hits
        if hit.num_tokens:
            caches = self.prefix.restore(hit)
            assert state.holds(caches, tokens[: hit.num_tokens], self.window)
        assert sum(take for _, take in hit.parts) == hit.num_tokens < len(tokens)
        return hit

    def compute(
        self, tokens: Sequence[int], policy: StorePolicy = StorePolicy.ALL, salt: str = ""
    ) -> Hit:
        """A row that looks up, prefills the rest and leaves its tail; what it found."""
        hit = self.look_up(tokens, salt)
        hit.chain.policy = policy
        self.prefix.claim(hit.chain)
        self.keep(hit.chain, tokens)
        return hit

    def keep(
        self,
        chain: Chain,
        tokens: Sequence[int],
        *,
        has_tail: bool = True,
        is_held: bool = False,
    ) -> None:
        """Store what is missing of a row whose state covers `tokens`; it goes on if it is held."""
        chain.tokens = token_array(tokens)
        stretch = self.prefix.missing(chain, len(tokens))
        if stretch is not None:
            start, end = stretch
            self.prefix.store(chain, state.caches(tokens, self.window), end - start)
        tail = self.prefix.missing_tail(chain, len(tokens)) if has_tail else None
        if tail is not None:
            num_tokens = tail[1] - tail[0]
            caches = state.caches(tokens, self.window)
            self.prefix.store_tail(chain, caches, num_tokens, is_held=is_held)

    def break_the_next_store(self) -> None:
        """The next time that a block is packed, the device has no memory left."""
        self.codec.is_broken = True

    def pass_delay(self) -> None:
        """Let the write delay pass and everything due be written."""
        self.clock.now += self.delay_s
        self.prefix.tick()
        self.settle()

    def restart(self) -> None:
        """Write what is dirty and start with an empty memory tier."""
        while not self.writeback.flush(0.0):
            self.settle()
        self.settle()
        self.start()

    def in_memory(self) -> list[list[int]]:
        """The tokens of every block in memory, the oldest first."""
        return [entry.tokens.tolist() for entry in self.entries()]

    def entries(self) -> list[Entry]:
        """The blocks in memory, the oldest first."""
        return list(self.memory._entries.values())

    def on_disk(self) -> list[int]:
        """The token counts of the block files, sorted."""
        return sorted(int(path.name.split(".")[2]) for path in self.block_files())

    def block_files(self) -> list[Path]:
        """Every block file."""
        return [path for path in self.fs.files() if path.suffix == ".safetensors"]

    def file_of(self, chain: Chain, index: int) -> Path:
        """Where full block `index` of a chain is."""
        parent = self.tiers.parent(chain.names, index, chain.salt)
        return block_path(DIRECTORY, ROOT, BlockKey(parent, chain.names[index], BLOCK))
