"""Point 3: a 3,000-token prompt cold, again, after SIGTERM and after kill -9, exact to the token;
the logits of the first token are those of the cold run, bit for bit."""

import time
from pathlib import Path

import numpy as np

from omlx.models.load import load
from tests.acceptance.conftest import Figure
from tests.fakes.harness import Harness
from tests.live import Live, chat, wait_until


def words(num: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    vocabulary = [
        "river",
        "stone",
        "tree",
        "yellow",
        "black",
        "white",
        "blue",
        "green",
        "red",
        "ten",
        "nine",
        "eight",
        "done",
    ]
    return " ".join(rng.choice(vocabulary, num))


def ask(live: Live, model: str, text: str) -> tuple[int, int, float]:
    """Prompt tokens, cached tokens and seconds to the first content of a streamed request."""
    body = {**chat(model, text, max_tokens=4), "stream_options": {"include_usage": True}}
    ttft, usage = 0.0, ""
    for at, line in live.stream("/v1/chat/completions", body):
        if not ttft and '"content":"' in line and '"content":""' not in line:
            ttft = at
        if '"prompt_tokens"' in line:
            usage = line
    import json

    fields = json.loads(usage[6:])["usage"]
    return fields["prompt_tokens"], fields["prompt_tokens_details"]["cached_tokens"], ttft


def test_served(demo: Path, tmp_path: Path, figure: Figure) -> None:
    args = ("--model-dir", str(demo.parent))
    text = words(2930, 1)
    live = Live(*args, home=tmp_path)
    size, cached, cold = ask(live, demo.name, text)
    assert 2900 < size < 3200 and cached == 0
    size2, again, warm = ask(live, demo.name, text)
    assert (size2, again) == (size, size - 1)
    assert live.stop() == 0
    with Live(*args, home=tmp_path) as live:
        _, restarted, disk = ask(live, demo.name, text)
        assert restarted == size - 1
        other = words(2930, 2)
        ask(live, demo.name, other)
        written = live.model_status()["counters"]["blocks_written"]
        wait_until(lambda: live.model_status()["counters"]["blocks_written"] >= written)
        time.sleep(4)  # past cache.write_delay: what is due is written
        live.kill()
    with Live(*args, home=tmp_path) as live:
        size3, killed, after_kill = ask(live, demo.name, other)
        assert killed == size3 - 1
    assert warm < cold / 5 and disk < cold / 5 and after_kill < cold / 5
    figure(
        f"{size} tokens, ttft cold {cold:.2f} s; again {again} cached, {warm:.2f} s; after SIGTERM "
        f"{restarted} cached, {disk:.2f} s; after kill -9 {killed} of {size3}, {after_kill:.2f} s"
    )


def test_logits(demo: Path, tmp_path: Path, figure: Figure) -> None:
    harness = Harness(load(demo).model, tmp_path / "cache")
    tokens = np.random.default_rng(3).integers(3, 49000, 3000).tolist()
    cold = harness.ask(tokens)
    warm = harness.ask(tokens)
    harness.restart()
    restarted = harness.ask(tokens)
    harness.stop()
    for other in (warm, restarted):
        assert other.cached == len(tokens) - 1
        assert other.tokens == cold.tokens
        for a, b in zip(other.logits, cold.logits, strict=True):
            np.testing.assert_array_equal(a, b)
    figure(f"{len(cold.logits)} steps x {len(cold.logits[0])} logits equal in memory and from disk")
