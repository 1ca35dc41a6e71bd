"""Point 1: kill -9, SIGSEGV, SIGSTOP and out-of-memory of an engine during eight streams, some in
prefill, some in decode: each ends with the greedy text of an undisturbed run, the server's uptime
is unbroken, and another model does not notice."""

import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.engines.streams import Stream, Streams, model, send_signal, wait_state
from tests.acceptance.serve.test_03_restart import words
from tests.live import Live, chat, wait_until

NOTE = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "minLength": 150}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
}


TEMPLATE = Path(__file__).parents[2] / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja"


def decoding(name: str, turn: str) -> list[Stream]:
    """Four with short prompts, in both dialects; one thinks, one is made to call a tool."""
    texts = ("What is the capital of France?", "How many legs have three dogs?", "Go on.")
    bodies = [chat(name, f"{text} {turn}", max_tokens=200) for text in texts]
    required = {"tools": [NOTE], "tool_choice": "required"}
    bodies[1] |= {**required, "temperature": 1.0, "seed": 7}  # it may think first, and does
    bodies[2] |= required
    story = chat(name, f"Write a story about a {turn}.", max_tokens=200)
    return [*map(Stream, bodies), Stream(story, path="/v1/messages")]


def prefilling(name: str, turn: str) -> list[Stream]:
    """Four with prompts that take several prefill chunks each."""
    return [Stream(chat(name, f"{turn} {words(1300, i)}", max_tokens=30)) for i in range(4)]


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two models: the one that is harmed, and another."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("harmed", "other"):
        shutil.copytree(tiny_model, folder / name)
        shutil.copy(TEMPLATE, folder / name / "chat_template.jinja")
    return folder


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    args = ("--model-dir", str(folder), "--preload", "always", "--stall-timeout", "3s")
    with Live(*args, home=tmp_path_factory.mktemp("home")) as server:
        for name in ("harmed", "other"):
            wait_state(server, name, "ready")
        yield server


def start(streams: Streams, turn: str) -> None:
    """Four decode and the others prefill when this returns."""
    early, late = decoding("harmed", turn), prefilling("harmed", turn)
    streams.start(*early)
    wait_until(lambda: all(len(s.texts) >= 5 for s in early), 120)
    streams.start(*late)
    wait_until(lambda: model(streams.live, "harmed")["prefilling"] > 0, 60)


def undisturbed(live: Live, turn: str) -> list[tuple[str, str | None]]:
    """What the same eight streams say when nothing happens."""
    streams = Streams(live)
    streams.start(*decoding("harmed", turn), *prefilling("harmed", turn))
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
def test_eight_streams(harm: Callable[[Live, str], None], live: Live, figure: Figure) -> None:
    turn = harm.__name__
    other = Streams(live)
    other.start(Stream(chat("other", f"{turn}. " + words(30, 1), max_tokens=800)))
    wait_until(lambda: len(other.streams[0].texts) > 20, 120)
    before = live.status()
    pids = [model(live, name)["pid"] for name in ("harmed", "other")]
    num_restarts = model(live, "harmed")["restarts"]
    streams = Streams(live)
    start(streams, turn)
    harm(live, "harmed")
    harmed = time.monotonic()
    wait_until(lambda: model(live, "harmed")["restarts"] > num_restarts, 120)
    noticed_s = time.monotonic() - harmed
    streams.join()
    other.join()
    found = [model(live, name) for name in ("harmed", "other")]
    after = live.status()
    assert live.process.poll() is None and after["uptime_s"] > before["uptime_s"]
    assert found[0]["restarts"] == num_restarts + 1 and found[0]["pid"] != pids[0]
    assert (found[1]["restarts"], found[1]["pid"]) == (0, pids[1])
    assert after["requests"]["failed"] == 0
    assert [s.errors for s in [*streams.streams, *other.streams]] == [[]] * 9
    texts = [(s.text, s.finish) for s in streams.streams]
    assert texts[2][0].startswith("note"), "a call of the tool"
    expected = undisturbed(live, turn)
    same = [a == b for a, b in zip(texts, expected, strict=True)]
    pauses = sorted(s.longest_gap_s for s in streams.streams[:4])
    figure(
        f"{turn}: {sum(same)} of 8 texts as undisturbed, no error; noticed after "
        f"{noticed_s:.1f} s, pauses of the decoding {pauses[0]:.1f} to {pauses[-1]:.1f} s; "
        f"longest gap of the other model {other.streams[0].longest_gap_s:.2f} s"
    )
    assert all(same), list(zip(texts, expected, strict=True))
