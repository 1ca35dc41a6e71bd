"""The heads that most requests shared: which they were, by the journal; their tokens, by the store.

A head is what comes before all messages: system and tools. The journal has names of blocks only,
so its tokens are those of the block files: of a head whose block is gone there is what comes before
it. Where it ends within a block, the rest is what most of the stored blocks there begin with.
Knows nothing about models.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omlx.cache.salting import salted_root
from omlx.server.prompt import head_of
from omlx.storage.entry import JournalEntry
from omlx.storage.fs import FileSystem, RealFileSystem
from omlx.storage.history import History
from omlx.storage.layout import HASH_BYTES, MAX_COUNT, BlockHash, BlockKey, RootHash
from omlx.storage.peek import Peek

_MOST_ROWS = 5000  # of the journal that are looked at
_LEAST_USES = 2
_MOST_TRIED = 8  # rows of one head that are asked for the block at its end


@dataclass(frozen=True, slots=True)
class SharedHead:
    """The tokens of a head, and the salt of those who share it."""

    tokens: tuple[int, ...]
    salt: str = ""


@dataclass(slots=True)
class _Head:
    """One head and the requests that had it, the newest first."""

    num_tokens: int
    blocks: tuple[str, ...]
    salt: str
    rows: list[JournalEntry] = field(default_factory=list[JournalEntry])


class StoredHeads:
    """Reads the journal and the disk tier, and changes nothing; for one thread at a time."""

    def __init__(self, journal_path: Path, cache_dir: Path, fs: FileSystem | None = None) -> None:
        self._journal_path = journal_path
        self._history = History(journal_path)
        self._cache_dir = cache_dir
        self._fs = fs or RealFileSystem()

    def most_used(self, model: str, num_heads: int) -> list[SharedHead]:
        """At most so many heads of a model, those that most requests shared first.

        StoreError where the journal can't be read; one that is not there yet has no heads.
        """
        if not self._journal_path.exists():
            return []
        rows = [row for row in self._history.of_model(model, _MOST_ROWS) if _is_usable(row)]
        found: list[SharedHead] = []
        for head in _ranked([row for row in rows if row.root == rows[0].root]):
            if len(found) == num_heads:
                break
            shared = SharedHead(self._tokens(head), head.salt)
            if shared.tokens and shared not in found:
                found.append(shared)
        return found

    def _tokens(self, head: _Head) -> tuple[int, ...]:
        """The tokens of a head, as far as its blocks are there."""
        root = RootHash(bytes.fromhex(head.rows[0].root))
        peek, size = Peek(self._cache_dir, root, self._fs), head.rows[0].block_size
        parent, tokens = BlockHash(salted_root(root, head.salt)), list[int]()
        for name in head.blocks:
            own = _tokens_of(peek, parent, name, size)
            if own is None:
                return tuple(tokens)
            tokens += own
            parent = _hash(name)
        num_left = head.num_tokens - len(tokens)
        if num_left:
            tokens += _end(peek, head, parent, num_left)
        return tuple(tokens)


def _end(peek: Peek, head: _Head, parent: BlockHash, num_tokens: int) -> list[int]:
    """The last tokens of a head, fewer than a block: of a block that its requests had, else what
    most of those begin with that follow its last full block; none where there are no such."""
    for row in head.rows[:_MOST_TRIED]:
        if len(head.blocks) < len(row.blocks):
            own = _tokens_of(peek, parent, row.blocks[len(head.blocks)], row.block_size)
            if own is not None:
                return own[:num_tokens]
    if not head.blocks:  # everything that is stored begins there
        return []
    num_bytes = 4 * num_tokens
    begun = [child.tokens[:num_bytes] for child in peek.children(parent)]
    most = Counter(data for data in begun if len(data) == num_bytes).most_common(1)
    return _unpacked(most[0][0]) if most else []


def _is_usable(row: JournalEntry) -> bool:
    """Whether a row tells of a head, in names that may be those of blocks."""
    try:
        is_name = len(bytes.fromhex(row.root)) == HASH_BYTES
        is_name = is_name and all(len(bytes.fromhex(b)) == HASH_BYTES for b in row.blocks)
    except ValueError:
        return False
    is_size = 0 < row.block_size <= MAX_COUNT
    return is_name and is_size and 0 < head_of(row.spans) < row.prompt_tokens


def _ranked(rows: Sequence[JournalEntry]) -> list[_Head]:
    """The heads that more than one of these rows had, the most frequent first, then the newest."""
    heads: dict[tuple[int, tuple[str, ...], str], _Head] = {}
    for row in rows:
        num_tokens = head_of(row.spans)
        blocks = row.blocks[: num_tokens // row.block_size]
        known = heads.setdefault(
            (num_tokens, blocks, row.salt), _Head(num_tokens, blocks, row.salt)
        )
        known.rows.append(row)
    shared = [head for head in heads.values() if len(head.rows) >= _LEAST_USES]
    return sorted(shared, key=lambda head: -len(head.rows))


def _tokens_of(peek: Peek, parent: BlockHash, name: str, count: int) -> list[int] | None:
    try:
        data = peek.tokens(BlockKey(parent, _hash(name), count))
    except ValueError:  # a name that is none
        return None
    return None if data is None else _unpacked(data)


def _unpacked(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def _hash(name: str) -> BlockHash:
    return BlockHash(bytes.fromhex(name))
