"""Blocks on their way from disk into memory, a few at a time.

Knows nothing about which blocks are wanted or what becomes of them. Engine thread only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlx.cache.codec import Codec
from omlx.cache.cost import LoadCost
from omlx.cache.hashing import TokenArray
from omlx.cache.io import DiskTier, ReadJob
from omlx.cache.leaves import Payload
from omlx.storage.layout import BlockKey

_MORE = 2  # and so many whenever one has arrived, so that the engine thread is never held up
_AHEAD_BYTES = 32 << 20  # a reader, asked for and not read: it is busy while the model steps


@dataclass(slots=True, eq=False)
class Piece:
    """A block or snapshot of a sequence; what `payload` lacks of it is only on disk.

    `position` is that of a snapshot, after which token it was taken; of a block it is 0.
    """

    key: BlockKey
    tokens: TokenArray
    payload: Payload | None = None
    is_from_disk: bool = False
    position: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """The groups of arrays that have to be read of a piece."""

    piece: Piece
    groups: Sequence[int]

    def num_bytes(self, codec: Codec) -> int:
        """How much there is to read."""
        specs = codec.state_specs() if self.piece.position else codec.specs(self.piece.key.count)
        return sum(specs[group].nbytes for group in self.groups)


def gaps(codec: Codec, cover: Sequence[tuple[Piece, int]]) -> list[Gap]:
    """What has to be read to restore the first tokens of each (piece, number of tokens)."""
    found: list[Gap] = []
    behind = 0
    for piece, take in reversed(cover):
        groups = codec.lacking(piece.payload, behind)
        if groups:
            found.append(Gap(piece, groups))
        behind += take
    return found[::-1]


class Reading:
    """Reads pieces side by side and fills in their payloads.

    Memory for a block is set apart shortly before it is read, and only for so many at a time: more
    than there are readers, and as far as `_AHEAD_BYTES` go.
    `arrived` gets the pieces in order, so that what they push out of memory makes room for those
    that follow. `done` gets None, or the first piece that can't be read; what comes after it is not
    given to `arrived`.
    """

    def __init__(
        self,
        disk: DiskTier,
        codec: Codec,
        cost: LoadCost,
        wanted: Sequence[Gap],
        *,
        arrived: Callable[[Piece], None],
        done: Callable[[Piece | None], None],
    ) -> None:
        self._disk = disk
        self._codec = codec
        self._cost = cost
        self._wanted = wanted
        self._arrived = arrived
        self._done = done
        self._landed: set[int] = set()
        self._num_given = 0
        self._next_idx = 0
        self._bad_idx = len(wanted)
        self._num_flying = 0
        self._flying_bytes = 0
        self._read_bytes = 0
        self._started = 0.0

    def start(self) -> None:
        """Begin; `done` is called when nothing is on its way any more."""
        self._started = self._cost.clock()
        self._ask_for(self._num_at_once())

    def _num_at_once(self) -> int:
        return (3 * self._disk.num_readers + 1) // 2  # so that each reader finds its next one there

    def _ask_for(self, most: int) -> None:
        for _ in range(most):
            is_many = self._num_flying >= self._num_at_once()
            is_ahead = is_many and self._flying_bytes >= self._disk.num_readers * _AHEAD_BYTES
            if is_ahead or self._next_idx >= self._bad_idx:
                break
            self._ask(self._next_idx)
            self._next_idx += 1

    def _ask(self, idx: int) -> None:
        codec, gap = self._codec, self._wanted[idx]
        piece = gap.piece
        if piece.position:
            landing = codec.allocate_states(piece.position)
        else:
            landing = codec.allocate(piece.key.count, gap.groups)
        num_bytes = gap.num_bytes(codec)

        def landed(results: list[bool]) -> None:
            self._num_flying -= 1
            self._flying_bytes -= num_bytes
            if results[0]:
                piece.payload = codec.joined(piece.payload, landing.payload())
                self._read_bytes += num_bytes
                self._landed.add(idx)
                self._give()
            else:
                self._bad_idx = min(self._bad_idx, idx)
            self._ask_for(_MORE)
            if not self._num_flying:
                self._end()

        self._num_flying += 1
        self._flying_bytes += num_bytes
        job = ReadJob(piece.key, piece.tokens.tobytes(), landing.sections())
        self._disk.read([job], landed)

    def _give(self) -> None:
        while self._num_given in self._landed:
            self._arrived(self._wanted[self._num_given].piece)
            self._num_given += 1

    def _end(self) -> None:
        self._cost.read(self._read_bytes, self._cost.clock() - self._started)
        is_whole = self._bad_idx == len(self._wanted)
        self._done(None if is_whole else self._wanted[self._bad_idx].piece)
