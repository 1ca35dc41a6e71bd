"""Point 2, cases S1, S6, S7, S11: restarts, upgrades, several servers on one directory, and the
end of one model beside another."""

import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from omlx.storage.scan import is_process_alive
from tests import models
from tests.acceptance.cache.cases import (
    ATTENTION,
    B,
    assert_greedy,
    disk_of,
    prompt,
    start,
)
from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import words
from tests.fakes import tiny
from tests.fakes.blocks import Shelf, make_chain
from tests.fakes.harness import Harness
from tests.live import Live, chat, run_omlx, wait_until

QUICK = ("--cache-write-delay", "100ms")


def say(live: Live, model: str, text: str) -> tuple[int, int, str]:
    """Prompt tokens, cached tokens and the answer."""
    status, answer = live.post("/v1/chat/completions", chat(model, text))
    assert status == 200, answer
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], cached, answer["choices"][0]["message"]["content"]


def wait_written(live: Live, num_blocks: int) -> None:
    wait_until(lambda: live.model_status()["counters"]["blocks_written"] >= num_blocks)


def inodes(home: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in home.rglob("*.256.safetensors")}


def kill_all(live: Live) -> None:
    """SIGKILL to the server and its engines at once, as a power cut would."""
    for child in psutil.Process(live.process.pid).children(recursive=True):
        child.kill()
    live.kill()


def test_s1_a_restart_finds_what_is_on_disk(
    tiny_model: Path, tmp_path: Path, figure: Figure
) -> None:
    """SIGTERM, SIGKILL, and a power cut that takes the last writes with it."""
    args = ("--model-dir", str(tiny_model.parent), *QUICK)
    first, second, third = (words(900, seed) for seed in (41, 42, 43))
    with Live(*args, home=tmp_path) as live:
        size, _, text = say(live, "tiny", first)
    before = inodes(tmp_path)
    live = Live(*args, home=tmp_path)
    assert say(live, "tiny", first) == (size, size - 1, text)
    size2, _, text2 = say(live, "tiny", second)
    wait_written(live, size2 // 256 + 1)
    kill_all(live)
    assert before.items() <= inodes(tmp_path).items(), "nothing is written twice"
    live = Live(*args, home=tmp_path)
    assert say(live, "tiny", second) == (size2, size2 - 1, text2)
    known = inodes(tmp_path)
    size3, _, text3 = say(live, "tiny", third)
    wait_written(live, size3 // 256 + 1)
    kill_all(live)
    fresh = sorted(inodes(tmp_path).keys() - known.keys(), key=lambda p: p.stat().st_mtime_ns)
    for path in fresh[1:]:  # names are there, content is not
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with Live(*args, home=tmp_path) as live:
        _, cached, again = say(live, "tiny", third)
        assert (cached, again) == (256, text3)
        assert say(live, "tiny", third)[1] == size3 - 1
    assert run_omlx("cache", "verify", home=tmp_path).returncode == 0
    figure(
        f"S1: after SIGTERM {size - 1} of {size} reused, after SIGKILL {size2 - 1} of {size2}, "
        f"after a power cut 256 of {size3}, equal answers; no file written twice"
    )


def as_older_format(cache_dir: Path) -> int:
    """Let all that is there be of the version before; how many files."""
    files = list(cache_dir.rglob("*.safetensors"))
    for path in files:
        path.write_bytes(path.read_bytes().replace(b'"format":"1"', b'"format":"0"'))
    for path in list(cache_dir.rglob("root.json")):
        path.write_text(path.read_text().replace('"format": "1"', '"format": "0"'))
        path.parent.rename(path.parent.with_name("0" * 16))
    return len(files)


def test_s6_an_upgrade_says_once_what_is_of_no_use(
    tmp_path: Path, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = prompt(3 * B + 5)
    other_layers = tiny.build_config({**tiny.CONFIGS[ATTENTION], "num_hidden_layers": 3})
    old = start(ATTENTION, tmp_path)
    old.ask(tokens)
    assert old.stop() == 0
    counts = {"another format version": as_older_format(tmp_path / "cache")}
    for reason, harness in (
        ("another block size", start(ATTENTION, tmp_path, block_size=2 * B)),
        ("other layers or types", Harness(other_layers, tmp_path / "cache", block_size=B)),
    ):
        num_before = len(list(tmp_path.rglob("*.safetensors")))
        assert harness.ask(tokens).cached == 0
        assert harness.stop() == 0
        counts[reason] = len(list(tmp_path.rglob("*.safetensors"))) - num_before
    caplog.clear()
    total = sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file())
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        new = start(ATTENTION, tmp_path, disk_bytes=total + 1_000_000)
        cold = new.ask(tokens)
    assert cold.cached == 0, "no partial reuse"
    (message,) = [r.getMessage() for r in caplog.records if r.name == "omlx.storage"]
    for reason, number in counts.items():
        assert f"{number} with {reason}" in message
    done = run_omlx(
        "cache", "inspect", "--json", "--cache-dir", str(tmp_path / "cache"), home=tmp_path
    )
    (report,) = json.loads(done.stdout)["models"]
    assert report["disk"]["other_version"] == counts["another format version"]
    assert report["disk"]["bad"] == {} and len(report["disk"]["roots"]) >= 3
    for seed in range(2, 12):
        new.ask(prompt(3 * B, seed=seed), 1)
    new.restart()
    new.ask([5], 1)
    left = list((tmp_path / "cache" / "blocks" / ("0" * 16)).rglob("*.safetensors"))
    assert left == [], "the oldest went first"
    assert disk_of(new).counters().bad == {}
    new.stop()
    figure(f'S6: "{message.split(": ")[1]}"; nothing reused; the old format evicted by age')


DIES_IN_A_WRITE = """
import os, signal, sys
from pathlib import Path
from omlx.storage.fs import RealFileSystem
from tests.fakes.blocks import Shelf, make_chain

class Dies(RealFileSystem):
    num_writes = 0
    def writev(self, fd, buffers):
        self.num_writes += 1
        if self.num_writes == 7:
            super().writev(fd, [memoryview(buffers[0])[:100]])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().writev(fd, buffers)

shelf = Shelf(Dies(), directory=Path(sys.argv[1]))
for block in make_chain(8, width=2000):
    shelf.put(block)
"""


def test_s7_a_process_killed_in_a_write_leaves_nothing_that_counts(
    tmp_path: Path, figure: Figure
) -> None:
    from omlx.storage.fs import RealFileSystem

    directory = tmp_path / "cache"
    command = [sys.executable, "-c", DIES_IN_A_WRITE, str(directory)]
    died = subprocess.run(command, check=False)
    assert died.returncode == -signal.SIGKILL
    temps = list(directory.rglob(".tmp-*"))
    assert len(temps) == 1 and temps[0].stat().st_size == 100
    shelf = Shelf(RealFileSystem(), directory=directory, is_alive=is_process_alive)
    indexed = shelf.store.index()
    assert indexed.num_stale_temps == 1 and not list(directory.rglob(".tmp-*"))
    chain = make_chain(8, width=2000)
    found = [shelf.get(block) for block in chain]
    num_good = indexed.num_blocks
    assert 0 < num_good < 8
    assert found == [b.data for b in chain[:num_good]] + [None] * (8 - num_good)
    assert shelf.store.counters().bad == {}
    figure(f"S7: killed in a write: {num_good} blocks good, its temporary file removed")


def test_s7_two_servers_share_a_directory(tmp_path: Path, figure: Figure) -> None:
    """One model in both, another in one of them; the limit makes each evict the other's."""
    both, one = tmp_path / "both", tmp_path / "one"
    models.tiny_served_model(both)
    models.tiny_served_model(one / "x")
    (one / "x" / "tiny").rename(one / "other")
    (one / "tiny").symlink_to(both / "tiny")
    config = json.loads((one / "other" / "config.json").read_text())
    (one / "other" / "config.json").write_text(json.dumps({**config, "rope_theta": 5e5}))
    limit = 12_000_000
    args = ("--cache-max-size", f"{limit}B", "--cache-min-free", "0B",
            "--cache-memory-size", "5MB", *QUICK)  # fmt: skip
    texts = {seed: words(700, seed) for seed in range(50, 56)}
    wrong: list[tuple[str, int]] = []
    with (
        Live("--model-dir", str(both), *args, home=tmp_path) as first,
        Live("--model-dir", str(one), *args, home=tmp_path) as second,
    ):
        jobs = [(first, "tiny"), (second, "tiny"), (second, "other")]
        right = {
            (model, seed): say(live, model, text)[2]
            for live, model in jobs[:1] + jobs[2:]
            for seed, text in texts.items()
        }

        def go_on(live: Live, model: str, rounds: int) -> None:
            for number in range(rounds):
                seed = 50 + number % len(texts)
                if say(live, model, texts[seed])[2] != right[model, seed]:
                    wrong.append((model, seed))

        threads = [threading.Thread(target=go_on, args=(*job, 12)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*") if p.is_file())
        kill_all(second)
        go_on(first, "tiny", 4)
        bad = first.model_status()["counters"]["bad"]
        evicted = first.model_status()["counters"]["evicted_disk"]
    assert wrong == [] and bad == {} and evicted > 0
    assert held <= limit + 3 * 1_100_000, "the ceiling, and a block of each process"
    assert run_omlx("cache", "verify", home=tmp_path).returncode == 0
    figure(f"S7: 40 answers of 3 engines right, {held:,} B of {limit:,}, {evicted} evicted by one, "
           "one server killed, nothing bad")  # fmt: skip


def test_s11_the_end_of_one_model_touches_no_other(tmp_path: Path, figure: Figure) -> None:
    """A is unloaded while B generates; then both prompts again."""
    a = start(ATTENTION, tmp_path, write_delay_s=60.0)
    b = start("qwen3", tmp_path, write_delay_s=60.0)
    tokens_a, tokens_b = prompt(3 * B + 5), prompt(3 * B + 7, seed=2)
    first_a = a.ask(tokens_a)
    assert not list(tmp_path.rglob("*.safetensors")), "all of it is in memory yet"
    solo = b.ask(tokens_b, 60)
    request_id = b.submit(tokens_b, 60)
    assert a.stop() == 0
    assert list(tmp_path.rglob("*.safetensors"))
    answer = b.collect(request_id)[request_id]
    assert_greedy(answer.tokens, solo)
    again = b.ask(tokens_b, 60)
    assert again.stats is not None and again.stats.cached_memory == len(tokens_b) - 1
    a.engine = a._start()
    second_a = a.ask(tokens_a)
    assert second_a.stats is not None and second_a.stats.cached_disk == len(tokens_a) - 1
    assert second_a.tokens == first_a.tokens
    for harness in (a, b):
        assert harness.stop() == 0
    figure(
        f"S11: A ended beside a running B: its {len(tokens_a) - 1} tokens come from disk, "
        f"B's {len(tokens_b) - 1} from memory, answers equal"
    )
