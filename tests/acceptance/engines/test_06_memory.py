"""Point 6: a thousand mixed requests, the memory tier and the server's encoded texts filled by the
first fifty: server and engine hold as much when they are idle afterwards as after those fifty,
within 2 %."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests import models
from tests.acceptance.conftest import Figure
from tests.acceptance.engines.streams import model, send
from tests.acceptance.serve.test_03_restart import words
from tests.fakes import tiny
from tests.live import Live, chat, wait_until

NUM_FIRST, NUM_ALL = 50, 1000
TIER = 110_000_000
TIERS = ("--cache-memory-size", str(TIER), "--cache-max-size", "120MB", "--cache-min-free", "0B")
# The tier is full to within a block, of 1.6 MB here; its arrays are as large as those of real
# models, 262 KB: the rest of an array's last page is resident, too.
ARGS = (*TIERS, "--block-size", "64")
SHAPE = {**tiny.CONFIGS["llama"], "num_hidden_layers": 3}
SHAPE |= {"num_attention_heads": 16, "num_key_value_heads": 16}
NUM_LONGEST, LONGEST_WORDS = 5, 160_000  # about a million characters, of the four that are kept
SETTLED_S = 24.0  # an idle engine gives back what is free after ten, and once more after ten


class Mix:
    """Requests of every kind, the same ones for the same seed."""

    def __init__(self, live: Live, seed: int) -> None:
        self.live = live
        self.rng = random.Random(seed)
        self.counts: dict[str, int] = {}
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def plan(self, number: int) -> tuple[str, str, dict[str, Any]]:
        """The kind, path and body of one request."""
        rng = self.rng
        kind = rng.choices(
            ("whole", "stream", "gone", "too long", "wrong"), weights=(45, 40, 7, 4, 4)
        )[0]
        if number < NUM_LONGEST:
            kind = "too long"
        text = words(rng.choice((5, 40, 200, 600, 1200)), rng.choice((number, number % 20)))
        body = chat("tiny", text, max_tokens=rng.choice((1, 4, 16, 32)))
        if rng.random() < 0.3:
            body |= {"temperature": 0.8}
        if rng.random() < 0.2:
            body |= {"stop_sequences" if rng.random() < 0.5 else "stop": ["zq"]}
        if kind == "too long":
            body["messages"][0]["content"] = words(
                LONGEST_WORDS if number < NUM_LONGEST else 9000, number
            )
        elif kind == "wrong":
            body["messages"] = rng.choice(([], "hello", [{"role": 3}], None))
        path = rng.choice(("/v1/chat/completions", "/v1/messages"))
        return kind, path, body

    def run(self, todo: range) -> None:
        """Send them, six at a time."""
        plans = [self.plan(number) for number in todo]
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(self._send, plans))

    def _send(self, plan: tuple[str, str, dict[str, Any]]) -> None:
        kind, path, body = plan
        try:
            self._ask(kind, path, body)
        except Exception as error:  # whatever a client would see
            self.failures.append(f"{kind} {path}: {error!r}")
        with self._lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1

    def _ask(self, kind: str, path: str, body: dict[str, Any]) -> None:
        if kind == "stream":
            last = [line for _, line in self.live.stream(path, body)][-1]
            assert last == "data: [DONE]" or "message_stop" in last, last
        elif kind == "gone":
            self._leave(path, body)
        else:
            status, answer = self.live.post(path, body)
            expected = 200 if kind == "whole" else 400
            assert status == expected, (status, answer)

    def _leave(self, path: str, body: dict[str, Any]) -> None:
        """Begin a stream and go away in the middle."""
        with send(self.live, path, {**body, "stream": True, "max_tokens": 500}) as sock:
            sock.recv(100)
            time.sleep(0.05)


@dataclass
class Held:
    """Resident bytes of server and engine, what mlx counts in the engine, and threads and files."""

    server: int
    engine: int
    device: int
    threads: int
    files: int


def held_when_idle(live: Live) -> Held:
    def is_idle() -> bool:
        found = model(live, "tiny")
        is_quiet = not (found["requests"] or found["writes"]["queued_bytes"])
        return is_quiet and not found["writes"]["dirty_bytes"]

    wait_until(is_idle, 120)
    time.sleep(SETTLED_S)
    found = model(live, "tiny")
    server, engine = psutil.Process(live.process.pid), psutil.Process(found["pid"])
    return Held(
        server.memory_info().rss,
        engine.memory_info().rss,
        found["memory_use"]["active_bytes"],
        server.num_threads() + engine.num_threads(),
        server.num_fds() + engine.num_fds(),
    )


def test_a_thousand_requests_leave_nothing(tmp_path: Path, figure: Figure) -> None:
    folder = models.tiny_served_model(tmp_path / "models", base=SHAPE)
    with Live("--model-dir", str(folder), *ARGS, home=tmp_path / "home") as live:
        mix = Mix(live, 6)
        mix.run(range(NUM_FIRST))
        first = held_when_idle(live)
        early = model(live, "tiny")
        tier = early["memory"]["bytes"]
        assert early["counters"]["evicted_memory"] > 0, "the first fifty more than fill the tier"
        mix.run(range(NUM_FIRST, NUM_ALL))
        last = held_when_idle(live)
        found = model(live, "tiny")
        assert live.status()["requests"]["active"] == 0
    assert mix.failures == [] and sum(mix.counts.values()) == NUM_ALL
    assert found["counters"]["evicted_memory"] > 100 and found["counters"]["evicted_disk"] > 100
    ratios = {
        name: getattr(last, name) / getattr(first, name) for name in ("server", "engine", "device")
    }
    shown = ", ".join(
        f"{name} {getattr(first, name) / 1e6:.1f} to {getattr(last, name) / 1e6:.1f} MB "
        f"({ratio - 1:+.2%})"
        for name, ratio in ratios.items()
    )
    figure(
        f"after {NUM_FIRST} and after {NUM_ALL} requests ({mix.counts}): {shown}; memory tier "
        f"{tier / 1e6:.1f} to {found['memory']['bytes'] / 1e6:.1f} of {TIER / 1e6:.0f} MB; threads "
        f"{first.threads} and {last.threads}, open files {first.files} and {last.files}"
    )
    assert max(ratios.values()) <= 1.02
    # Threads that read are started as they are needed, eight at most.
    assert last.threads <= first.threads + 8 and last.files <= first.files + 8
