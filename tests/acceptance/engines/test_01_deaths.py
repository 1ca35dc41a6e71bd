"""Point 1: kill -9, SIGSEGV, SIGSTOP and out-of-memory of an engine during eight streams, some in
prefill, some in decode: each ends with the greedy text of an undisturbed run, the server's uptime
is unbroken, and another model does not notice."""

import resource
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

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


def decoding(name: str) -> list[Stream]:
    """Four with short prompts: a chat, one with a tool, one in the other dialect, one with a
    system prompt that asks for thinking."""
    tool = {**chat(name, "Read the file notes.txt and tell me what is in it.", max_tokens=90)}
    thinking = chat(name, "How many legs have three dogs?", max_tokens=90)
    thinking["messages"].insert(0, {"role": "system", "content": "Think step by step."})
    message = chat(name, "Write a story about a river.", max_tokens=90)
    return [
        Stream(chat(name, "What is the capital of France? Tell me about it.", max_tokens=90)),
        Stream({**tool, "tools": [TOOL]}),
        Stream(thinking),
        Stream(message, path="/v1/messages"),
    ]


def prefilling(name: str) -> list[Stream]:
    """Four with prompts that take several prefill chunks each."""
    return [Stream(chat(name, words(420, 70 + i), max_tokens=24)) for i in range(4)]


def serve(demo: Path, tiny_model: Path, home: Path) -> Live:
    folders = ("--model-dir", str(demo), "--model-dir", str(tiny_model))
    live = Live(*folders, "--preload", "always", "--stall-timeout", "3s", home=home)
    for name in (demo.name, "tiny"):
        wait_state(live, name, "ready")
    return live


def start(streams: Streams, name: str) -> None:
    """Four decode and the others prefill when this returns."""
    early, late = decoding(name), prefilling(name)
    streams.start(*early)
    wait_until(lambda: all(len(s.texts) >= 5 for s in early), 120)
    streams.start(*late)
    wait_until(lambda: model(streams.live, name)["prefilling"] > 0, 60)


@pytest.fixture(scope="module")
def undisturbed(
    demo: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str | None]]:
    """What the eight streams say when nothing happens."""
    with serve(demo, tiny_model, tmp_path_factory.mktemp("undisturbed")) as live:
        streams = Streams(live)
        start(streams, demo.name)
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
    demo: Path,
    tiny_model: Path,
    tmp_path: Path,
    figure: Figure,
) -> None:
    with serve(demo, tiny_model, tmp_path) as live:
        other = Streams(live)
        other.start(Stream(chat("tiny", "Go on. " + words(30, 1), max_tokens=3000)))
        wait_until(lambda: len(other.streams[0].texts) > 20)
        uptime = live.status()["uptime_s"]
        before = model(live, demo.name)["pid"], model(live, "tiny")["pid"]
        streams = Streams(live)
        start(streams, demo.name)
        harm(live, demo.name)
        harmed = time.monotonic()
        wait_until(lambda: model(live, demo.name)["restarts"] > 0, 120)
        noticed_s = time.monotonic() - harmed
        streams.join()
        other.join()
        found = model(live, demo.name), model(live, "tiny")
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
