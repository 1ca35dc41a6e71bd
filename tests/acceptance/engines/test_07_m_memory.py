"""Point 7, the cases M1, M2, M3, M6, M11 and M14: memory."""

import gc
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
import pytest

from omlx.engine.memory import PeakMeter
from omlx.engine.request import FailureCode, FinishReason
from tests import models
from tests.acceptance.conftest import Figure
from tests.acceptance.engines.streams import model
from tests.acceptance.serve.test_03_restart import words
from tests.fakes import tiny
from tests.fakes.harness import Harness
from tests.live import Live, chat, wait_until

LIMIT = 200_000_000


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of that shape."""
    return models.tiny_served_model(tmp_path_factory.mktemp("heavy"), base=tiny.HEAVY)


def rss(live: Live, name: str = "tiny") -> int:
    return psutil.Process(model(live, name)["pid"]).memory_info().rss


@contextmanager
def peak_of(live: Live) -> Iterator[list[int]]:
    """The highest resident size of the engine process while this is open, in its one item."""
    process, peak, is_over = psutil.Process(model(live, "tiny")["pid"]), [0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def post(live: Live, body: dict[str, Any]) -> tuple[int, Any, str | None]:
    """Status, answer and Retry-After."""
    with closing(live.connection(600)) as connection:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        retry = response.getheader("Retry-After")
        return response.status, json.loads(response.read()), retry


def test_m1_m14_never_over_the_limit(heavy: Path, tmp_path: Path, figure: Figure) -> None:
    """Many long prompts at once, and one that can never fit; the process is measured."""
    args = ("--memory-limit", str(LIMIT), "--max-queue", "12", "--cache-memory-size", "20MB")
    with Live("--model-dir", str(heavy), *args, home=tmp_path) as live:
        status, answer, _ = post(live, chat("tiny", words(7500, 1)))
        message = answer["error"]["message"]
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert "of memory for its state" in message and "`engine.memory_limit`" in message
        before = rss(live)
        bodies = [chat("tiny", words(1500 + 200 * (i % 6), i), max_tokens=4) for i in range(40)]
        with peak_of(live) as peak, ThreadPoolExecutor(len(bodies)) as threads:
            found = list(threads.map(lambda body: post(live, body), bodies))
        grown = peak[0] - before
        codes = [status for status, _, _ in found]
        assert set(codes) <= {200, 429} and codes.count(200) >= 12 and codes.count(429) > 0
        assert all(int(retry or 0) >= 1 for status, _, retry in found if status == 429)
        weights = sum(f.stat().st_size for f in heavy.glob("*.safetensors"))
        most, beside = LIMIT - weights, LIMIT // 8 + 40_000_000
        assert post(live, chat("tiny", words(1500, 99)))[0] == 200, "nothing latches"
    figure(
        f"M1: {codes.count(200)} answered, {codes.count(429)} told to come back; the process grew "
        f"by {grown / 1e6:.0f} MB, of {most / 1e6:.0f} that weights leave and {beside / 1e6:.0f} "
        f"of freed buffers and what is no array; 400: {message}"
    )
    assert grown <= most + beside


def test_m2_the_memory_tier_has_a_limit(tmp_path: Path, figure: Figure) -> None:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = {**tiny.CONFIGS["llama"], **heads, "num_hidden_layers": 1}
    tier = 100_000_000
    harness = Harness(
        tiny.build_config(config), tmp_path, memory_bytes=tier, disk_bytes=0, prefill_chunk=1024
    )
    rng = np.random.default_rng(1)
    most_tier, most_active = 0, 0
    for _ in range(100):
        answer = harness.ask(rng.integers(3, tiny.NUM_VOCAB, 8000).tolist(), 1)
        assert answer.reason is FinishReason.LENGTH
        snapshot = harness.engine.snapshot()
        assert snapshot is not None
        most_tier = max(most_tier, snapshot.memory.bytes)
        most_active = max(most_active, mx.get_active_memory())
        assert snapshot.memory.bytes <= tier
    assert harness.stop() == 0
    row = 8192 * 2 * 2 * 64 * 4
    figure(
        f"M2: 100 prompts of 8,000 tokens: at most {most_tier / 1e6:.1f} MB of {tier / 1e6:.0f} in "
        f"the tier, {most_active / 1e6:.0f} MB of arrays"
    )
    assert most_tier > 0.9 * tier
    assert most_active <= tier + 3 * row + 20_000_000


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next", "falcon_h1"])
def test_m3_snapshots_grow_with_the_context(kind: str, tmp_path: Path, figure: Figure) -> None:
    """64 turns of one conversation: what is held grows like the number of turns."""
    harness = Harness(
        tiny.build(kind), tmp_path, block_size=64, prefill_chunk=64, write_delay_s=0.02
    )
    rng = np.random.default_rng(2)
    tokens: list[int] = []
    held: list[int] = []
    for _ in range(64):
        tokens += rng.integers(3, 500, 40).tolist()
        answer = harness.ask(tokens, 4)
        tokens += answer.tokens
        wait_until(lambda: is_written(harness))
        snapshot = harness.engine.snapshot()
        assert snapshot is not None
        held.append(snapshot.memory.bytes + snapshot.disk.bytes)
    harness.stop()
    growth = held[63] / held[31]
    figure(
        f"M3 {kind}: {held[15] / 1e6:.2f}, {held[31] / 1e6:.2f} and {held[63] / 1e6:.2f} MB after "
        f"16, 32 and 64 turns: x {growth:.2f} from 32 to 64"
    )
    assert growth <= 2.1


def is_written(harness: Harness) -> bool:
    """Whether nothing is on its way to disk any more."""
    snapshot = harness.engine.snapshot()
    return snapshot is not None and not (
        snapshot.writes.dirty_bytes or snapshot.writes.queued_bytes
    )


def test_m3_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path, figure: Figure) -> None:
    harness = Harness(
        tiny.build("mamba2"), tmp_path, block_size=64, memory_bytes=10_000, disk_bytes=10_000
    )
    for seed in range(3):
        prompt = np.random.default_rng(seed).integers(3, 500, 200).tolist()
        assert harness.ask(prompt, 4).reason is FinishReason.LENGTH
        assert harness.ask(prompt, 4).cached == 0
    snapshot = harness.engine.snapshot()
    assert snapshot is not None
    held = snapshot.memory.bytes, snapshot.disk.bytes
    harness.stop()
    figure(f"M3: one snapshot is more than both tiers of 10 kB: {held} bytes held, answers right")
    assert max(held) <= 10_000


def test_m6_the_same_decision_fifty_times(heavy: Path, tmp_path: Path, figure: Figure) -> None:
    """Prompts of the same length, new and known ones, near the largest that fits."""
    args = ("--memory-limit", "110MB", "--cache-memory-size", "20MB")
    with Live("--model-dir", str(heavy), *args, home=tmp_path) as live:
        message = post(live, chat("tiny", words(7800, 1)))[1]["error"]["message"]
        most = int(message.split("At most ")[1].split()[0])
        length = int(0.9 * most)
        known = chat("tiny", words(length, 2), max_tokens=1)
        statuses = [post(live, known)[0] for _ in range(50)]
        for seed in range(6):
            fresh = chat("tiny", words(length, 3 + seed), max_tokens=1)
            statuses += [post(live, fresh)[0], post(live, known)[0]]
    figure(f"M6: {len(statuses)} times {length} of at most {most} tokens: {sorted(set(statuses))}")
    assert set(statuses) == {200}


FULL = 850_000_000  # a row of the largest prompt needs the rest of the limit


def test_m11_memory_goes_back_to_the_system(tmp_path: Path, figure: Figure) -> None:
    """A tier of 1 GB is filled; another model needs the room; then the engine idles."""
    folder = tmp_path / "models"
    for name in ("one", "two"):
        models.tiny_served_model(folder / name, base=tiny.HEAVY).rename(folder / f"m{name}")
    args = (
        "--model-dir", str(folder), "--cache-memory-size", "1GB", "--cache-max-size", "0B",
        "--memory-limit", "1.2GB", "--preload", "never",
    )  # fmt: skip
    with Live(*args, home=tmp_path / "home", wait=False) as live:
        assert post(live, chat("mone", "Hello."))[0] == 200
        empty = rss(live, "mone")
        for seed in range(6):
            assert post(live, chat("mone", words(7800, seed), max_tokens=1))[0] == 200
        wait_until(lambda: model(live, "mone")["memory"]["bytes"] > FULL, 60)
        full = rss(live, "mone")
        # Rows of the second need what the cache of the first has.
        with ThreadPoolExecutor(4) as threads:
            bodies = [chat("mtwo", words(7800, seed), max_tokens=1) for seed in range(4)]
            assert {s for s, _, _ in threads.map(lambda b: post(live, b), bodies)} == {200}
        kept = model(live, "mone")["memory"]["bytes"]
        time.sleep(13)
        after = rss(live, "mone")
        given = full - after
    figure(
        f"M11: resident {empty / 1e6:.0f} MB, with 1 GB of cache {full / 1e6:.0f} MB; another "
        f"model's rows took it down to {kept / 1e6:.0f} MB of cache, {after / 1e6:.0f} MB resident"
    )
    assert kept < 800_000_000
    assert given >= 0.9 * (FULL - kept)


@pytest.mark.parametrize("chunk", [512, 2048, 8192])
def test_m14_the_largest_prompt_at_the_limit(
    chunk: int, tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs with every chunk size, in pieces that memory allows."""
    limit = 120_000_000
    gc.collect()
    others = mx.get_active_memory()  # what other tests have left
    peaks: list[int] = []
    end = PeakMeter.end

    def noted(meter: PeakMeter) -> int:
        peaks[-1] = max(peaks[-1], mx.get_peak_memory() - others)
        return end(meter)

    monkeypatch.setattr(PeakMeter, "end", noted)
    peaks.append(0)
    harness = Harness(
        tiny.build_config(tiny.HEAVY), tmp_path, memory_limit=limit, memory_bytes=0, disk_bytes=0,
        prefill_chunk=chunk, warm_up=True,
    )  # fmt: skip
    refused = harness.ask([5] * 8000, 1).failed
    assert refused is not None and refused.code is FailureCode.BAD_REQUEST
    most = int(refused.message.split("At most ")[1].split()[0])
    for seed in range(2):
        peaks.append(0)
        prompt = np.random.default_rng(seed).integers(3, 500, most - 2).tolist()
        assert harness.ask(prompt, 1).reason is FinishReason.LENGTH
    assert harness.stop() == 0
    shown = ", ".join(f"{peak / 1e6:.0f}" for peak in peaks)
    figure(
        f"M14 chunk {chunk}: {most - 2} tokens twice; peaks of the warm-up and of both {shown} MB "
        f"of {limit / 1e6:.0f}"
    )
    # A step of sixteen tokens is always tried, whatever it needs beside the state.
    assert max(peaks) <= limit * 1.1


def test_m14_a_failed_allocation_in_the_middle(tmp_path: Path, figure: Figure) -> None:
    """A step in the middle of a long prompt finds no memory: the prompt goes on, and so does the
    other row; a prompt that never finds any ends alone."""
    plain = tiny.build()

    class Short:
        fails, most, num = 0, 10**6, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            self.num += inputs.shape[1] > 8
            is_large = inputs.shape[1] > self.most
            if inputs.shape[1] > 8 and self.num > 5 and (self.fails or is_large):
                self.fails -= not is_large
                raise RuntimeError("[malloc] Unable to allocate 1000000 bytes.")
            return plain(inputs, cache=cache)

    short = Short()
    harness = Harness(short, tmp_path, prefill_chunk=128, cache_enabled=False)
    prompt = np.random.default_rng(1).integers(3, 500, 3000).tolist()
    expected = Harness(plain, tmp_path / "calm", prefill_chunk=128, cache_enabled=False)
    right = expected.ask(prompt, 8).tokens
    expected.stop()
    results = []
    for fails, most in ((1, 10**6), (0, 32), (10**6, 10**6)):
        short.fails, short.most, short.num = fails, most, 0
        beside = harness.submit([7] * 5, 300)
        long = harness.submit(prompt, 8)
        answers = harness.collect(long, beside, timeout_s=120)
        short.fails, short.most = 0, 10**6
        assert answers[beside].reason is FinishReason.LENGTH
        results.append(answers[long].failed.code.name if answers[long].failed else "right")
        assert answers[long].failed or answers[long].tokens == right
    assert harness.ask(prompt, 8).tokens == right, "nothing latches"
    assert harness.stop() == 0
    figure(
        f"M14: one failed allocation in a prefill, all of steps over 32 tokens, all: {results}; "
        "the rows beside ended"
    )
    assert results[:2] == ["right", "right"]
