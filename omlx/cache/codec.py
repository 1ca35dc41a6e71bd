"""Layer caches to block payloads and back, for the cache classes of mlx-lm.

Knows nothing about hashing, tiers or files. Every function runs on the engine thread.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from omlx.cache.cutting import Cut, Stretch
from omlx.cache.landing import MX_DTYPES, Landing, as_bytes, views_are_zero_copy
from omlx.cache.leaves import Leaf, Path, Payload, StateLeaf, group
from omlx.cache.mover import Form, Mover
from omlx.custom_kernels.kv_format import Piece
from omlx.storage.record import SectionSpec

_DTYPES = {dtype: name for name, dtype in MX_DTYPES.items() if name != "U8"}
Kind = tuple[int, int, str, int]
LOSSY_FORM = "8 bits, lossy"
_mx: Any = mx  # for calls that its stubs leave untyped, and so below
_Rotating: Any = RotatingKVCache
_Arrays: Any = ArraysCache
_List: Any = CacheList


class UncacheableError(Exception):
    """The model's layer caches can't be stored in blocks; the message names the class."""


class Codec:
    """Packs and restores the layer caches of one model.

    Leaves of equal shape and type share one array, so that a block is few arrays, layer-major:
    one section of a file each, and one copy for a whole block. `kv` leaves hold all tokens of a
    block, `window` leaves the last ones that a window may need, `state` leaves are kept apart, in
    snapshots.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        states: Sequence[StateLeaf] = (),
        mover: Mover | None = None,
    ) -> None:
        self.leaves = tuple(leaves)
        self._mover = mover or Mover()
        self.states = tuple(states)
        shapes = ((leaf.heads, leaf.width, leaf.dtype, leaf.window) for leaf in self.leaves)
        self._groups = sorted(group(shapes), key=lambda g: g[0][3] > 0)
        self._names = _numbered("window" if shape[3] else "kv" for shape, _ in self._groups)
        self._state_groups = group((leaf.shape, leaf.dtype) for leaf in self.states)
        self._windows = {leaf.window for leaf in self.leaves if leaf.window}
        self.has_blocks = bool(self.leaves)
        self.has_states = bool(self.states)
        self.is_zero_copy = views_are_zero_copy()

    @classmethod
    def from_caches(cls, caches: Sequence[Any], mover: Mover | None = None) -> "Codec":
        """The codec for caches that have seen at least one token; UncacheableError.

        The mover says in which form blocks hold numbers, and what moves them.
        """
        return cls(*_leaves_in(caches), mover)

    @property
    def is_sliceable(self) -> bool:
        """Whether all state can be cut at any token, also after more tokens have come."""
        return not self._windows and not self.has_states

    def can_cut(self, count: int, take: int) -> bool:
        """Whether the first `take` tokens of a block of `count` can be used without the rest."""
        return take == count or all(window >= count for window in self._windows)

    def layout(self) -> dict[str, str]:
        """What the bytes of a block mean, as text: part of the root hash and of root.json."""
        groups: list[str] = []
        for name, (kind, members) in zip(self._names, self._groups, strict=True):
            groups.append(_group_text(name, kind, [self.leaves[i] for i in members], self._mover))
        for g, ((shape, dtype), members) in enumerate(self._state_groups):
            states = [self.states[i] for i in members]
            groups.append(f"state.{g}={dtype}[{_state_text(shape, states)}")
        is_lossy = any(self._mover.packs(width) for _, _, width, _, _ in self.forms)
        return {"sections": ";".join(groups), **({"form": LOSSY_FORM} if is_lossy else {})}

    @property
    def forms(self) -> list[Form]:
        """Leaves, heads, width, dtype and window (0 for none) of each group."""
        return [(len(members), *kind) for kind, members in self._groups]

    def specs(self, count: int) -> list[SectionSpec]:
        """The sections of a block of `count` tokens, in the order of Payload.arrays."""
        found: list[SectionSpec] = []
        for name, ((heads, width, dtype, window), members) in zip(
            self._names, self._groups, strict=True
        ):
            held, size = self._mover.form(width, dtype)
            shape = (len(members), heads, min(count, window or count), size)
            found.append(SectionSpec(name, held, shape))
        return found

    def state_specs(self) -> list[SectionSpec]:
        """The sections of a snapshot, in the order of Payload.arrays."""
        return [
            SectionSpec(f"state.{g}", dtype, (len(members), *shape))
            for g, ((shape, dtype), members) in enumerate(self._state_groups)
        ]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of state that one token needs in all layers."""
        return sum(spec.nbytes for spec in self.specs(1))

    def pack(
        self, caches: Sequence[Any], start: int, counts: Sequence[int], *, is_own: bool = False
    ) -> list[Payload]:
        """Cut blocks of `counts` tokens, from token `start` on, out of a row's layer caches.

        Fewer blocks come back where a window has moved on already. `is_own` says that the caches
        have buffers of their own: of views a kernel would be given copies.
        """
        rows = {path: Stretch(cache, start) for path, cache in _plain(caches)}
        total = start + sum(counts)
        cuts: list[Cut] = []
        for (_, _, dtype, _), members in self._groups:
            own = [(rows[self.leaves[i].path], self.leaves[i].name) for i in members]
            assert len({row.first for row, _ in own}) == 1, "equal layers hold the same tokens"
            assert min(row.end for row, _ in own) >= total, "the state covers the blocks"
            cuts.append(Cut(own, total, dtype, self._mover, is_own=is_own))
        payloads: list[Payload] = []
        for count in counts:
            arrays: list[mx.array] = []
            end = start + count
            for ((_, _, _, window), _), cut in zip(self._groups, cuts, strict=True):
                begin = end - min(count, window or count)
                if begin >= cut.first:
                    arrays.append(cut.tokens(begin, end))
            if len(arrays) < len(cuts):
                break
            payloads.append(Payload(count, tuple(arrays)))
            start = end
        _mx.async_eval([p.arrays for p in payloads])
        return payloads

    def pack_states(self, caches: Sequence[Any], position: int) -> Payload | None:
        """A snapshot of a row whose state is that after `position` tokens; None if it has none.

        No snapshot of what is not as expected: a slot of another shape, a row with padding.
        """
        plain = dict(_plain(caches))
        if any(plain[leaf.path].offset != position for leaf in self.leaves):
            return None
        arrays: list[mx.array] = []
        for state in self.states:
            slots, padding, lengths = plain[state.path].state
            array = slots[state.slot]
            known = [s.slot for s in self.states if s.path == state.path]
            odd = any(a is not None for i, a in enumerate(slots) if i not in known)
            if array is None or odd or padding is not None or lengths is not None:
                return None
            if array.shape != (1, *state.shape) or _DTYPES.get(array.dtype) != state.dtype:
                return None
            arrays.append(array[0])
        stacks = [mx.contiguous(mx.stack([arrays[i] for i in m])) for _, m in self._state_groups]
        _mx.async_eval(stacks)
        return Payload(position, tuple(stacks))

    def restore(
        self, parts: Sequence[tuple[Payload, int]], states: Payload | None = None
    ) -> list[Any]:
        """Layer caches that hold the first `take` tokens of each (payload, take), in order.

        `states` is the snapshot after the last of them, for a model that has state leaves. Buffers
        are over-allocated as those of a live cache, since an attention kernel may be chosen by the
        shape of the buffer.
        """
        assert self.has_states == (states is not None)
        total = sum(take for _, take in parts)
        assert all(self.can_cut(p.count, take) for p, take in parts)
        assert states is None or not self.has_blocks or states.count == total
        arrays: dict[int, mx.array] = {}
        for g, ((heads, width, dtype, window), members) in enumerate(self._groups):
            room = 0 if window else -total % KVCache.step
            pieces = [Piece(p.arrays[g], a, b) for p, a, b in _used(parts, window, total)]
            shape = (len(members), heads, width)
            made = self._mover.scatter(pieces, room, shape, dtype)
            arrays |= dict(zip(members, made, strict=True))
        built: dict[Path, Any] = {}
        for i in range(0, len(self.leaves), 2):
            leaf = self.leaves[i]
            built[leaf.path] = _cache_of(leaf, arrays.pop(i), arrays.pop(i + 1), total)
        if states is not None:
            groups = [[self.states[i] for i in members] for _, members in self._state_groups]
            built |= _recurrent(states, groups)
        return _nested(built)

    def read_views(self, payload: Payload) -> list[memoryview]:
        """The bytes of a payload, zero-copy where the device shares memory with the CPU; elsewhere
        of a copy, so that the payload stays where it is."""
        arrays = payload.arrays
        if not self.is_zero_copy:
            arrays = tuple(a.view(mx.uint8) + 0 for a in arrays)
        return [as_bytes(a).data.cast("B") for a in arrays]

    def allocate(self, count: int, groups: Sequence[int]) -> Landing:
        """Writable buffers for these groups of one block, which will be read from disk."""
        specs = [spec if g in groups else None for g, spec in enumerate(self.specs(count))]
        return Landing(specs, count, zero_copy=self.is_zero_copy)

    def allocate_states(self, position: int) -> Landing:
        """Writable buffers for a snapshot after `position` tokens."""
        return Landing(self.state_specs(), position, zero_copy=self.is_zero_copy)

    def lacking(self, payload: Payload | None, behind: int) -> list[int]:
        """The groups of a block that a restore needs and the payload does not hold.

        `behind` is how many tokens come after the block: windows reach back so far only.
        """
        return [
            g
            for g, ((_, _, _, window), _) in enumerate(self._groups)
            if (payload is None or payload.arrays[g] is None) and (not window or behind < window)
        ]

    def joined(self, old: Payload | None, new: Payload) -> Payload:
        """One payload of two that hold different groups of the same block."""
        if old is None:
            return new
        pairs = zip(old.arrays, new.arrays, strict=True)
        return Payload(old.count, tuple(a if a is not None else b for a, b in pairs))


def _group_text(name: str, kind: Kind, leaves: Sequence[Leaf], mover: Mover) -> str:
    heads, width, dtype, window = kind
    count = f"min({window},count)" if window else "count"
    held, size = mover.form(width, dtype)
    note = "" if held == dtype else f" ({dtype} in 8 bits)"
    users = ",".join(_dotted(leaf.path) + leaf.name for leaf in leaves)
    return f"{name}={held}[{len(leaves)},{heads},{count},{size}]{note}:{users}"


def _state_text(shape: Sequence[int], states: Sequence[StateLeaf]) -> str:
    users = ",".join(f"{_dotted(s.path)}s{s.slot}of{s.num_slots}" for s in states)
    return f"{','.join(map(str, (len(states), *shape)))}]:{users}"


def _recurrent(payload: Payload, groups: Sequence[Sequence[StateLeaf]]) -> dict[Path, Any]:
    """The caches of recurrent layers out of a snapshot, by path."""
    slots: dict[Path, list[mx.array | None]] = {}
    for array, states in zip(payload.arrays, groups, strict=True):
        for position, state in enumerate(states):
            row = slots.setdefault(state.path, [None] * state.num_slots)
            row[state.slot] = array[position : position + 1]
    return {path: _Arrays.from_state((row, None, None)) for path, row in slots.items()}


def _used(
    parts: Sequence[tuple[Payload, int]], window: int, total: int
) -> list[tuple[Payload, int, int]]:
    """Which stored tokens [a, b) of each payload a cache needs; `window` is 0 for all of them."""
    need = min(window or total, total)
    used: list[tuple[Payload, int, int]] = []
    for payload, take in reversed(parts):
        stored = min(window or payload.count, payload.count)
        end = stored if take == payload.count else take
        size = min(need, end)
        if size:
            used.append((payload, end - size, end))
        need -= size
    assert need == 0, "the parts hold what the window needs"
    return used[::-1]


def _cache_of(leaf: Leaf, keys: mx.array, values: mx.array, total: int) -> Any:
    # Layer by layer, so that pieces are freed while later layers are put together.
    _mx.async_eval(keys, values)
    if leaf.window:
        ring = (keys, values, total, 0, leaf.window, keys.shape[2])
        return _Rotating.from_state(ring)
    cache = KVCache()
    cache.keys, cache.values, cache.offset = keys, values, total
    return cache


def _nested(built: dict[Path, Any]) -> list[Any]:
    """Plain caches by path as a model's list of caches."""
    heads = sorted({path[0] for path in built})
    assert heads == list(range(len(heads)))
    caches: list[Any] = []
    for head in heads:
        below = {path[1:]: cache for path, cache in built.items() if path[0] == head}
        caches.append(below[()] if () in below else _List(*_nested(below)))
    return caches


def _plain(caches: Sequence[Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The caches that hold arrays, by their place in lists of lists."""
    for i, cache in enumerate(caches):
        if type(cache) is _List:
            yield from _plain(cache.caches, (*above, i))
        else:
            yield (*above, i), cache


def _leaves_in(caches: Sequence[Any]) -> tuple[list[Leaf], list[StateLeaf]]:
    leaves: list[Leaf] = []
    states: list[StateLeaf] = []
    for path, cache in _plain(caches):
        kind = cast(type[object], type(cache))
        if kind is KVCache:
            leaves += _leaves_of(path, cache, 0)
        elif kind is RotatingKVCache and cache.keep == 0 and cache.max_size > 0:
            leaves += _leaves_of(path, cache, cache.max_size)
        elif kind is ArraysCache:
            states += _states_of(path, cache)
        else:
            raise UncacheableError(f"{kind.__name__} ({_place(path)}) has no block form")
    if not leaves and not states:
        raise UncacheableError("the model keeps no state")
    return leaves, states


def _leaves_of(path: Path, cache: Any, window: int) -> list[Leaf]:
    leaves: list[Leaf] = []
    for name, array in (("k", cache.keys), ("v", cache.values)):
        if array is None or array.dtype not in _DTYPES:
            raise UncacheableError(f"{_place(path)} keeps its {name} in an unknown form")
        heads, width = array.shape[1], array.shape[3]
        leaves.append(Leaf(path, name, heads, width, _DTYPES[array.dtype], window))
    return leaves


def _states_of(path: Path, cache: Any) -> list[StateLeaf]:
    slots = list(cache.state[0])
    states: list[StateLeaf] = []
    for i, array in enumerate(slots):
        if array is None:
            continue
        if array.dtype not in _DTYPES or array.ndim < 2 or array.shape[0] != 1:
            raise UncacheableError(f"{_place(path)} keeps its slot {i} in an unknown form")
        shape = tuple(array.shape[1:])
        states.append(StateLeaf(path, i, len(slots), shape, _DTYPES[array.dtype]))
    if not states:
        raise UncacheableError(f"{_place(path)} keeps nothing in its slots")
    return states


def _numbered(names: Iterator[str]) -> list[str]:
    """Every name with how often it has come before."""
    seen: list[str] = []
    for name in names:
        seen.append(f"{name}.{sum(s.startswith(name) for s in seen)}")
    return seen


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _place(path: Path) -> str:
    return f"layer {_dotted(path)}"
