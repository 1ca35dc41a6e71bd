"""Point 2, cases P1, P3, P5: what was restored goes on as what was never stored, for every kind of
layer; a model with a state goes on with it; what is stored is nobody's live object."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx.cache.leaves import Payload
from omlx.cache.memory import Entry
from omlx.engine.request import EngineState, FailureCode
from omlx.storage.layout import BlockKind
from omlx.storage.record import checksum
from tests.acceptance.cache.cases import (
    ATTENTION,
    STATES,
    WINDOWS,
    B,
    Counting,
    assert_close,
    assert_greedy,
    assert_same,
    block_files,
    prefix_of,
    prompt,
    settle,
    start,
)
from tests.acceptance.conftest import Figure
from tests.fakes.harness import Answer, Harness
from tests.live import wait_until

KINDS = [ATTENTION, *WINDOWS, *STATES]
LENGTHS = [1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 5 * B + 7]


@pytest.mark.parametrize("name", KINDS)
def test_p1_every_length_from_every_tier_equals_cold(
    name: str, tmp_path: Path, figure: Figure
) -> None:
    """Cold, from memory, from SSD in the same process, after a restart: bit for bit."""
    in_memory, on_disk = start(name, tmp_path / "a"), start(name, tmp_path / "b", memory_bytes=0)
    colds = {n: in_memory.ask(prompt(n, seed=n)) for n in LENGTHS}
    for n, cold in colds.items():
        assert len(cold.tokens) == 4 and cold.cached == 0
        assert_same(on_disk.ask(prompt(n, seed=n)), cold)
        settle(on_disk)
    for tier in ("memory", "disk", "restart"):
        if tier == "restart":
            in_memory.restart()
        harness = on_disk if tier == "disk" else in_memory
        for n, cold in colds.items():
            warm = harness.ask(prompt(n, seed=n))
            assert warm.stats is not None
            found = warm.stats.cached_memory, warm.stats.cached_disk
            assert found == ((n - 1, 0) if tier == "memory" else (0, n - 1)), (tier, n)
            assert_same(warm, cold)
    in_memory.stop()
    on_disk.stop()
    figure(f"P1 {name}: {len(LENGTHS)} lengths, logits bit-equal from memory, SSD, after a restart")


@pytest.mark.parametrize("name", KINDS)
def test_p1_a_partial_restore_equals_cold(name: str, tmp_path: Path, figure: Figure) -> None:
    """The end of the chain is gone: the good prefix is kept, the rest is computed."""
    harness = start(name, tmp_path, snapshot_interval=2 * B)
    cold = harness.ask(prompt(5 * B + 7))
    assert harness.stop() == 0
    if name == "mamba2":  # it has no blocks
        files = sorted(tmp_path.rglob("*.state.safetensors"), key=lambda p: p.stat().st_mtime_ns)
        for path in files[1:]:
            path.unlink()
    else:
        block_files(tmp_path)[4].unlink()
    harness.engine = harness._start()
    warm = harness.ask(prompt(5 * B + 7))
    assert warm.cached == (2 * B if name in STATES else 4 * B)
    assert_same(warm, cold)
    harness.stop()
    figure(f"P1 {name}: {warm.cached} of {5 * B + 7} restored, logits bit-equal")


def with_nan(payload: Payload) -> Payload:
    arrays = [mx.array(a) for a in payload.arrays]
    arrays[0][(0,) * arrays[0].ndim] = float("nan")
    mx.eval(arrays)
    return Payload(payload.count, tuple(arrays))


def spoil_in_memory(harness: Harness) -> None:
    """Put a NaN into the second block, and into the snapshots of a model that has them."""
    prefix = prefix_of(harness)
    entries: list[Entry[Any]] = list(prefix._memory._entries.values())[1:2]
    entries += prefix._tiers.snapshots._entries.values()
    for entry in entries:
        entry.payload = with_nan(entry.payload)


def spoil_on_disk(path: Path) -> None:
    """Put a NaN into the first section of a file, with the checksum that belongs to it."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    name, section = sorted(
        ((k, v) for k, v in header.items() if k not in ("__metadata__", "tokens")),
        key=lambda item: item[1]["data_offsets"],
    )[0]
    a, b = (start + offset for offset in section["data_offsets"])
    data[a : a + 4] = np.float32("nan").tobytes()
    header["__metadata__"]["xxh3." + name] = checksum(data[a:b]).hex()
    text = json.dumps(header, separators=(",", ":")).encode()
    data[8:start] = text.ljust(start - 8, b" ")
    path.write_bytes(data)


@pytest.mark.parametrize("name", [ATTENTION, "gemma3_text", "lfm2"])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_p1_a_nan_in_a_stored_block_is_an_error_once(
    name: str, tier: str, tmp_path: Path, figure: Figure
) -> None:
    """Never token 0: the request ends with an error, and the blocks that fed it are dropped."""
    harness = start(name, tmp_path)
    cold = harness.ask(prompt(2 * B + 7))
    if tier == "memory":
        spoil_in_memory(harness)
    else:
        assert harness.stop() == 0
        spoil_on_disk(block_files(tmp_path)[1])
        for path in tmp_path.rglob("*.state.safetensors"):
            spoil_on_disk(path)
        harness.engine = harness._start()
    bad = harness.ask(prompt(2 * B + 7))
    assert bad.failed is not None and bad.failed.code is FailureCode.ENGINE, bad.tokens
    assert bad.tokens == [] and bad.failed.message
    again = harness.ask(prompt(2 * B + 7))
    assert again.cached <= B, "what fed the failed request is gone"
    assert_close(again, cold)
    harness.restart()
    assert_close(harness.ask(prompt(2 * B + 7)), cold)
    harness.stop()
    figure(f'P1 {name}, NaN in {tier}: "{bad.failed.message}", then equal to cold')


class Conversation:
    """An agent's turns on one engine; each adds to the prompt that it has and to its reply."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        wait_until(lambda: harness.engine.state() is EngineState.READY)  # a start calls the model
        harness.model._model = self._model = Counting(harness.model._model)
        self.prompts: list[list[int]] = []
        self.answers: list[Answer] = []

    def ask(self, tokens: list[int]) -> Answer:
        """One answer; what it says of the cache is what the model was spared, in all layers."""
        before = self._model.num_tokens
        answer = self._harness.ask(tokens)
        computed = self._model.num_tokens - before
        assert computed == len(tokens) - answer.cached + len(answer.tokens)
        return answer

    def turn(self) -> None:
        tokens = prompt(2 * B + 9, seed=100 + len(self.prompts))
        if self.prompts:
            tokens = [*self.prompts[-1], *self.answers[-1].tokens, *tokens]
        self.prompts.append(tokens)
        self.answers.append(self.ask(tokens))


@pytest.mark.parametrize("name", [*WINDOWS, *STATES])
def test_p3_an_agent_loop_a_branch_and_a_return(name: str, tmp_path: Path, figure: Figure) -> None:
    harness = start(name, tmp_path, snapshot_interval=B)
    talk = Conversation(harness)
    for _ in range(10):
        talk.turn()
    totals = [len(p) + len(a.tokens) for p, a in zip(talk.prompts, talk.answers, strict=True)]
    for total, answer in zip(totals, talk.answers[1:], strict=False):
        assert answer.cached == total
    snapshots = prefix_of(harness)._tiers.snapshots._entries.values()
    positions = [entry.payload.count for entry in snapshots]
    branch = talk.ask([*talk.prompts[4], *prompt(B, seed=7)])
    point = len(talk.prompts[4])
    expected = max(p for p in positions if p <= point) if name in STATES else point
    assert branch.cached == expected > 0
    assert talk.ask(prompt(3 * B, seed=8)).cached == 0
    talk.turn()
    assert talk.answers[-1].cached == totals[-1]
    reference = start(name, tmp_path / "reference", cache_enabled=False)
    assert_close(talk.answers[-1], reference.ask(talk.prompts[-1]))
    harness.stop()
    reference.stop()
    figure(
        f"P3 {name}: turns 2 to 11 reuse all of the turn before, a branch at {point} reuses "
        f"{branch.cached}; the model computed exactly the rest"
    )


def held(harness: Harness) -> list[tuple[Any, ...]]:
    """Everything in the memory tier, as it is now."""
    prefix = prefix_of(harness)
    entries: list[Entry[Any]] = [*prefix._memory._entries.values()]
    entries += prefix._tiers.snapshots._entries.values()
    return [
        (e.key, e.tokens.tolist(), e.payload.count, *(np.array(a) for a in e.payload.arrays))
        for e in entries
    ]


@pytest.mark.parametrize("name", [ATTENTION, "gemma3_text", "lfm2"])
def test_p5_what_is_stored_is_no_live_object(name: str, tmp_path: Path, figure: Figure) -> None:
    harness = start(name, tmp_path)
    shared = prompt(3 * B + 5)
    cold = harness.ask(shared, 2)
    before = {entry[0]: entry for entry in held(harness)}
    harness.ask([*shared, *prompt(9, seed=2)], 50)
    kept = [entry for entry in held(harness) if entry[0] in before]
    assert len(kept) >= 3
    for entry in kept:
        for a, b in zip(entry, before[entry[0]], strict=True):
            np.testing.assert_array_equal(a, b)
    assert_same(harness.ask(shared, 2), cold)
    ids = [harness.submit(shared, 9) for _ in range(2)]
    answers = harness.collect(*ids)
    solo = harness.ask(shared, 9)
    for request_id in ids:
        assert answers[request_id].cached == len(shared) - 1
        assert_greedy(answers[request_id].tokens, solo)
    harness.stop()
    figure(f"P5 {name}: {len(kept)} blocks unchanged after 50 more tokens; 2 at once equal alone")


def test_p5_a_stored_slice_holds_its_own_bytes_only(tmp_path: Path, figure: Figure) -> None:
    """A view of a row's buffer would keep all of it."""
    harness = start(ATTENTION, tmp_path, memory_bytes=1 << 30)
    harness.ask(prompt(B))
    tier, codec = prefix_of(harness)._memory, prefix_of(harness)._tiers.codec
    active, used = mx.get_active_memory(), tier.used_bytes
    for seed in range(30):
        harness.ask(prompt(B + 5, seed=10 + seed), 2)
    settle(harness)
    tokens = sum(e.payload.count for e in tier._entries.values())
    assert all(e.key.kind is BlockKind.BLOCK for e in tier._entries.values())
    assert tier.used_bytes == tokens * codec.bytes_per_token
    grown = mx.get_active_memory() - active
    assert grown <= 1.1 * (tier.used_bytes - used) + 100_000, "more is held than is counted"
    harness.stop()
    figure(f"P5: {tier.used_bytes - used:,} bytes counted for 30 prompts, {grown:,} held")
