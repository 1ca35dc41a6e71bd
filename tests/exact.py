"""Restored state against a run that never met the cache: cases, ways of return, the comparison.

The reference is one live cache that takes the same pieces of tokens as the engine. Lengths lie
around the edges of blocks, windows, prefill chunks and snapshots.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.switch_layers import SwitchLinear

from omlx.cache.codec import Codec
from omlx.cache.prefix import PrefixCache
from omlx.engine.request import EngineState
from omlx.models.load import probe_caches
from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness

BLOCK = 32
CHUNK = 2 * BLOCK
WINDOW = 48  # no multiple of the block, and longer than it, so that blocks may be cut
INTERVAL = 4 * BLOCK  # tokens between two snapshots
REPLY = 4
EDGES = (BLOCK, WINDOW, CHUNK, INTERVAL)
WAYS = ("memory", "disk", "restart", "eviction")
ARCHITECTURES = tuple(tiny.CONFIGS)
EXPERTS = ("qwen3_moe", "gpt_oss", "qwen3_next", "deepseek_v3")
Rows = list[np.ndarray]


def build(name: str, dtype: mx.Dtype, *, experts_bits: int | None = None) -> Any:
    """A tiny model with a window of WINDOW where it has one; `experts_bits` packs its experts."""
    config = dict(tiny.CONFIGS[name])
    if "sliding_window" in config:
        config["sliding_window"] = WINDOW
    if experts_bits is None:
        return tiny.build_config(config, dtype=dtype)
    model = tiny.build_config(config)
    nn.quantize(
        model, bits=experts_bits, class_predicate=lambda _, layer: isinstance(layer, SwitchLinear)
    )

    def cast(p: mx.array) -> mx.array:
        return p.astype(dtype) if mx.issubdtype(p.dtype, mx.floating) else p

    model.update(tree_map(cast, model.parameters()))
    mx.eval(model.parameters())
    return model


def random_tokens(length: int, seed: int) -> list[int]:
    """A prompt that shares no block with that of another seed."""
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


@dataclass(frozen=True, slots=True)
class Case:
    """A request whose first `num_restored` tokens come from the cache.

    Either a prompt again, which ends one token later; or the next turn of a conversation, whose
    reply ends there.
    """

    num_restored: int
    is_repeat: bool

    @property
    def prompt(self) -> list[int]:
        """The first request."""
        length = self.num_restored + 1 if self.is_repeat else self.num_restored - REPLY
        return random_tokens(length, 2 * self.num_restored + self.is_repeat)

    def again(self, reply: Sequence[int]) -> list[int]:
        """The second request, once the reply to the first is known."""
        if self.is_repeat:
            return self.prompt
        return [*self.prompt, *reply, *random_tokens(BLOCK + 9, 1)]


def cases(lengths: Sequence[int]) -> list[Case]:
    """Both kinds for each length that allows it."""
    return [
        Case(n, is_repeat) for n in lengths for is_repeat in (True, False) if is_repeat or n > REPLY
    ]


def around_edges() -> list[int]:
    """One token, each edge with both neighbours, and a length of many blocks."""
    near = {edge + d for edge in EDGES for d in (-1, 0, 1)}
    return sorted({1, *near, 2 * INTERVAL + BLOCK + 7})


@dataclass(frozen=True, slots=True)
class Difference:
    """How two runs of logits differ: rows compared, values whose bits differ, by how much."""

    num_rows: int
    num_values: int
    largest: float

    @property
    def is_none(self) -> bool:
        """Whether all of it is the same, bit for bit."""
        return not self.num_values

    def __add__(self, other: "Difference") -> "Difference":
        return Difference(
            self.num_rows + other.num_rows,
            self.num_values + other.num_values,
            max(self.largest, other.largest),
        )


NOTHING = Difference(0, 0, 0.0)


def difference(found: Rows, expected: Rows) -> Difference:
    """The one comparison of all these tests; a row that is missing counts as a whole."""
    num_rows = max(len(found), len(expected))
    pairs = list(zip(found, expected, strict=False))
    num_values = (num_rows - len(pairs)) * tiny.NUM_VOCAB
    largest = 0.0
    for a, b in pairs:
        assert a.dtype == b.dtype == np.float32 and a.shape == b.shape
        num_values += int((a.view(np.uint32) != b.view(np.uint32)).sum())
        largest = max(largest, float(np.abs(a - b).max()))
    return Difference(num_rows, num_values, largest)


class Unbroken:
    """One live cache, prefilled alone and decoded in a batch of one, as the engine does."""

    def __init__(self, model: Any, chunk: int = CHUNK) -> None:
        self._model = model
        self._chunk = chunk
        self.caches: list[Any] = make_prompt_cache(model)
        self.num_done = 0

    def prefill(self, tokens: Sequence[int]) -> None:
        """All but the last of `tokens`, on the grid of chunks."""
        last = len(tokens) - 1
        while self.num_done < last:
            end = min(last, (self.num_done // self._chunk + 1) * self._chunk)
            self._step(self.caches, tokens[self.num_done : end])
            self.num_done = end

    def decode(
        self, token: int, num_tokens: int = REPLY, *, reply: Sequence[int] = ()
    ) -> tuple[Rows, list[int]]:
        """The logits after `token` and after each of `num_tokens` more, and those: the greedy ones
        or `reply`."""
        batch = [type(cache).merge([cache]) for cache in self.caches]
        rows: Rows = []
        tokens = [token]
        for _ in range(num_tokens + 1):
            logits = self._step(batch, tokens[-1:])
            rows.append(np.array(logits.astype(mx.float32)))
            # Of log probabilities, as the sampler's: in bfloat16 more of them are equal.
            greedy = int(mx.argmax(logits - mx.logsumexp(logits)).item())
            tokens.append(reply[len(rows) - 1] if len(rows) <= len(reply) else greedy)
        self.caches = [cache.extract(0) for cache in batch]
        self.num_done += num_tokens + 1
        return rows, tokens[1:-1]

    def move(self) -> None:
        """Put the state into new buffers, of the size that a restored cache has."""
        self.caches = [_moved(cache) for cache in self.caches]

    def _step(self, caches: list[Any], tokens: Sequence[int]) -> mx.array:
        logits = self._model(mx.array([list(tokens)]), cache=caches)[0, -1]
        mx.eval(logits, [cache.state for cache in caches])
        return logits


def _moved(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_moved(below) for below in cache.caches))
    if isinstance(cache, ArraysCache):
        slots, padding, lengths = cache.state
        return ArraysCache.from_state(
            ([None if a is None else mx.array(a) for a in slots], padding, lengths)
        )
    if isinstance(cache, RotatingKVCache):
        keys, values, offset, keep, size, place = cache.state
        order = [*range(place, keys.shape[2]), *range(place)] if place < offset else range(place)
        taken = mx.array(list(order)[-size:])
        ring = keys[:, :, taken], values[:, :, taken]
        return RotatingKVCache.from_state((*ring, offset, keep, size, len(taken)))
    assert type(cache) is KVCache
    moved = KVCache()
    room = -cache.offset % KVCache.step
    for name in ("keys", "values"):
        array = getattr(cache, name)[:, :, : cache.offset]
        spare = mx.zeros((*array.shape[:2], room, array.shape[3]), dtype=array.dtype)
        setattr(moved, name, mx.concatenate([array, spare], axis=2))
    moved.offset = cache.offset
    return moved


@dataclass(frozen=True, slots=True)
class Live:
    """The logits of a case's two requests without a cache."""

    first: Rows
    second: Rows


def live(
    model: Any,
    case: Case,
    *,
    chunk: int = CHUNK,
    reply: Sequence[int] = (),
    moves: bool = False,
) -> Live:
    """Compute a case without the engine; `reply` is what to take for the first one, `moves` puts
    the state that the second request begins with into other buffers."""
    run = Unbroken(model, chunk)
    prompt = case.prompt
    run.prefill(prompt)
    if case.is_repeat:
        if moves:
            run.move()
        rows, _ = run.decode(prompt[-1])
        return Live(rows, rows)
    first, reply = run.decode(prompt[-1], reply=reply)
    if moves:
        run.move()
    prompt = case.again(reply)
    run.prefill(prompt)
    return Live(first, run.decode(prompt[-1])[0])


@dataclass(frozen=True, slots=True)
class Return:
    """What the engine answered to both requests of a case."""

    case: Case
    first: Answer
    second: Answer


def prefix_of(harness: Harness) -> PrefixCache:
    """The prefix cache of a running engine."""
    assembly = harness.engine._assembly
    assert assembly is not None and assembly.prefix is not None
    return assembly.prefix


def settle(harness: Harness) -> None:
    """Wait until the files of all that is kept are there."""
    assembly, prefix = harness.engine._assembly, prefix_of(harness)
    assert assembly is not None
    done: list[bool] = []
    over = threading.Event()

    def flush() -> None:
        done.append(prefix.flush(60.0))
        over.set()

    assembly.inbox.post(flush)
    assert over.wait(60.0) and done == [True]


def start(model: Any, folder: Path, **config: Any) -> Harness:
    """An engine on `folder`; what is kept is written without delay."""
    sizes = {"block_size": BLOCK, "prefill_chunk": CHUNK, "snapshot_interval": INTERVAL}
    harness = Harness(model, folder, **{**sizes, "write_delay_s": 0.0, **config})
    while harness.engine.state() is not EngineState.READY:
        assert harness.engine.state() is not EngineState.FAILED
        time.sleep(0.001)
    return harness


def too_small_bytes(model: Any) -> int:
    """A memory tier that holds about one of the sequences."""
    codec = Codec.from_caches(probe_caches(model))
    block = sum(spec.nbytes for spec in codec.specs(BLOCK))
    snapshot = sum(spec.nbytes for spec in codec.state_specs())
    return max(8 * block, 12 * snapshot)


def come_back(
    way: str, model: Any, folder: Path, todo: Sequence[Case], **config: Any
) -> Iterator[Return]:
    """Ask every first request, let its state go that way, and ask every second one.

    `disk` is a second engine on the files of one that still runs, `queue` the same engine while
    nothing is written yet. Where an engine has no memory tier, `settled` is that engine itself.
    """
    if way == "eviction":
        config = {"memory_bytes": too_small_bytes(model), **config}
    engine = start(model, folder, **config)
    written = hold_writes(engine) if way == "queue" else None
    firsts: list[Answer] = []
    for case in todo:
        firsts.append(engine.ask(case.prompt, REPLY))
        if way == "eviction":
            settle_if_busy_is_lost(engine)
    engines = [engine]
    if way == "eviction":
        push_out(engine)
    if way in ("disk", "settled", "eviction"):
        settle(engine)
    if way == "disk":
        engines.append(start(model, folder, **config))
    elif way == "restart":
        engine.restart()
    for case, first in zip(todo, firsts, strict=True):
        yield Return(case, first, engines[-1].ask(case.again(first.tokens), REPLY))
    if written is not None:
        written.set()
    for one in engines:
        assert one.stop() == 0


def settle_if_busy_is_lost(harness: Harness) -> None:
    """Where the CPU does not share the device's memory, what leaves it while a row runs is lost."""
    if not prefix_of(harness)._tiers.codec.is_zero_copy:
        settle(harness)


def push_out(harness: Harness) -> None:
    """Fill a memory tier that is too small for two sequences with others."""
    for seed in range(3):
        harness.ask(random_tokens(2 * INTERVAL, 10**6 + seed), 1)
        settle_if_busy_is_lost(harness)
    tiers = prefix_of(harness)._tiers
    assert tiers.memory.evicted + tiers.snapshots.evicted > 0


def hold_writes(harness: Harness) -> threading.Event:
    """Let the thread that writes wait until the event is set."""
    disk = prefix_of(harness)._tiers.disk
    assert disk is not None
    go_on = threading.Event()
    disk._writer.submit(go_on.wait, 300.0)
    return go_on
