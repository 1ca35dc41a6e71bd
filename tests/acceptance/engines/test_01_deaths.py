"""Point 1: kill -9, SIGSEGV, SIGSTOP and out-of-memory of an engine during eight streams, some in
prefill, some in decode: each ends with the greedy text of an undisturbed run, the server's uptime
is unbroken, and another model does not notice."""

import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.engines.streams import Stream, Streams, model, send_signal, wait_state
from tests.acceptance.serve.test_03_restart import words
from tests.live import Live, chat, wait_until


def decoding(name: str) -> list[Stream]:
    """Four with short prompts, in both dialects."""
    texts = ("What is the capital of France?", "How many legs have three dogs?", "Go on.")
    bodies = [chat(name, text, max_tokens=400) for text in texts]
    bodies[1]["messages"].insert(0, {"role": "system", "content": "Think step by step."})
    story = chat(name, "Write a story about a river.", max_tokens=400)
    return [*map(Stream, bodies), Stream(story, path="/v1/messages")]


def prefilling(name: str) -> list[Stream]:
    """Four with prompts that take several prefill chunks each."""
    return [Stream(chat(name, words(2000, 70 + i), max_tokens=60)) for i in range(4)]


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two models: the one that is harmed, and another."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("harmed", "other"):
        shutil.copytree(tiny_model, folder / name)
    return folder


def serve(folder: Path, home: Path) -> Live:
    args = ("--model-dir", str(folder), "--preload", "always", "--stall-timeout", "3s")
    live = Live(*args, home=home)
    for name in ("harmed", "other"):
        wait_state(live, name, "ready")
    return live


def start(streams: Streams, name: str = "harmed") -> None:
    """Four decode and the others prefill when this returns."""
    early, late = decoding(name), prefilling(name)
    streams.start(*early)
    wait_until(lambda: all(len(s.texts) >= 5 for s in early), 120)
    streams.start(*late)
    wait_until(lambda: model(streams.live, name)["prefilling"] > 0, 60)


@pytest.fixture(scope="module")
def undisturbed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str | None]]:
    """What the eight streams say when nothing happens."""
    with serve(folder, tmp_path_factory.mktemp("undisturbed")) as live:
        streams = Streams(live)
        start(streams)
        streams.join()
    assert not any(s.errors for s in streams.streams)
    return [(s.text, s.finish) for s in streams.streams]


def kill(live: Live, name: str) -> None:
    send_signal(live, name, signal.SIGKILL)


def segfault(live: Live, name: str) -> None:
    send_signal(live, name, signal.SIGSEGV)


def stop(live: Live, name: str) -> None:
    send_signal(live, name, signal.SIGSTOP)


def starve(live: Live, name: str) -> None:
    """From now on its process gets no more memory."""
    process = psutil.Process(model(live, name)["pid"])
    limit = process.memory_info().vms
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.parametrize("harm", [kill, segfault, stop, starve])
def test_eight_streams(
    harm: Callable[[Live, str], None],
    undisturbed: list[tuple[str, str | None]],
    folder: Path,
    tmp_path: Path,
    figure: Figure,
) -> None:
    with serve(folder, tmp_path) as live:
        other = Streams(live)
        other.start(Stream(chat("other", "Go on. " + words(30, 1), max_tokens=1500)))
        wait_until(lambda: len(other.streams[0].texts) > 20)
        uptime = live.status()["uptime_s"]
        before = model(live, "harmed")["pid"], model(live, "other")["pid"]
        streams = Streams(live)
        start(streams)
        harm(live, "harmed")
        harmed = time.monotonic()
        wait_until(lambda: model(live, "harmed")["restarts"] > 0, 120)
        noticed_s = time.monotonic() - harmed
        streams.join()
        other.join()
        found = model(live, "harmed"), model(live, "other")
        assert live.process.poll() is None and live.status()["uptime_s"] > uptime
        assert found[0]["restarts"] == 1 and found[0]["pid"] != before[0]
        assert (found[1]["restarts"], found[1]["pid"]) == (0, before[1])
        assert live.status()["requests"]["failed"] == 0
    assert [s.errors for s in [*streams.streams, *other.streams]] == [[]] * 9
    same = [(s.text, s.finish) == u for s, u in zip(streams.streams, undisturbed, strict=True)]
    pauses = sorted(s.longest_gap_s for s in streams.streams[:4])
    figure(
        f"{harm.__name__}: {sum(same)} of 8 texts as undisturbed, no error; noticed after "
        f"{noticed_s:.1f} s, pauses of the decoding {pauses[0]:.1f} to {pauses[-1]:.1f} s; "
        f"longest gap of the other model {other.streams[0].longest_gap_s:.2f} s"
    )
    assert all(same), [(s.text, u) for s, u in zip(streams.streams, undisturbed, strict=True)]
