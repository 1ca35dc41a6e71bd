"""What the disk has of a sequence: blocks that are there or on their way, and snapshots.

Knows nothing about threads; on those that read. Bytes only, no mlx.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from omlx.cache.hashing import TokenArray, common_prefix, tokens_of_bytes
from omlx.cache.queued import QueuedBlocks
from omlx.storage.layout import BlockHash, BlockKey, BlockKind
from omlx.storage.store import BlockStore


@dataclass(frozen=True, slots=True)
class Partial:
    """A stored block whose first `take` tokens continue the sequence."""

    key: BlockKey
    tokens: TokenArray
    take: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the disk has of a sequence: so many full blocks, then perhaps a part of one more.

    `states` are snapshots after a part of the sequence, the deepest first. `nearest` is what
    `partial` is, or a block that goes on without sharing a token.
    """

    num_blocks: int
    partial: Partial | None
    states: tuple[BlockKey, ...] = ()
    nearest: Partial | None = field(default=None, compare=False)


def find_blocks(
    store: BlockStore,
    queued: QueuedBlocks,
    keys: Sequence[BlockKey],
    parent: BlockHash,
    rest: TokenArray,
) -> Found:
    """Walk `keys` as far as they are there, then look for what shares most of the rest."""
    num_blocks = 0
    for key in keys:
        # In this order: one that is not queued any more is on disk by then.
        if key not in queued and not store.contains(key):
            break
        num_blocks += 1
        parent = key.name
        rest = rest[key.count :]
    best: Partial | None = None
    children = queued.children([parent])
    for child in [*children, *store.children(parent)] if len(rest) else ():
        if child.key.kind is not BlockKind.BLOCK:
            continue
        tokens = tokens_of_bytes(child.tokens)
        take = common_prefix(tokens, rest)
        if take > (best.take if best else -1):
            best = Partial(child.key, tokens, take)
    return Found(num_blocks, best if best and best.take else None, nearest=best)


def find_states(
    store: BlockStore,
    queued: QueuedBlocks,
    walked: Sequence[BlockKey],
    parent: BlockHash,
    rest: TokenArray,
) -> tuple[BlockKey, ...]:
    """The states at the ends of the blocks walked, within them and the next, deepest first."""
    starts: dict[BlockHash, int] = {}
    start = 0
    for key in walked:
        starts[parent] = start
        start += key.count
        parent = key.name
    starts[parent] = start
    names = {starts[key.name]: key.name for key in walked}  # by where they end
    found: dict[BlockKey, int] = {}
    waiting = [c for c in queued.children(starts) if c.key.kind is BlockKind.STATE]
    for child in [*waiting, *store.states(list(starts))] if len(rest) else ():
        start, tokens = starts[child.key.parent], tokens_of_bytes(child.tokens)
        end = start + len(tokens)
        # Where a block is walked to its end, only its own name is right there.
        is_right = names.get(end, child.key.name) == child.key.name
        if is_right and common_prefix(tokens, rest[start:]) == len(tokens):
            found[child.key] = end
    return tuple(sorted(found, key=lambda key: found[key], reverse=True))
