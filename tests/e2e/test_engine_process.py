"""The engine in a process of its own: a whole life, a sudden death, and no orphans."""

import os
import queue
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from omlx.engine.config import EngineConfig
from omlx.engine.frames import events_from, receive, request_frame, send
from omlx.engine.process import EngineProcess
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    EngineState,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Token,
)
from tests.fakes import tiny

pytestmark = pytest.mark.e2e
PROMPT = tuple(range(3, 103))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    return tiny.save(tiny.build(), path, tiny.CONFIGS["llama"])


@pytest.fixture
def config(model_dir: Path, tmp_path: Path) -> EngineConfig:
    return EngineConfig(
        "tiny",
        str(model_dir),
        cache_dir=str(tmp_path / "cache"),
        block_size=32,
        prefill_chunk=64,
        min_free_bytes=0,
        log_level="error",
        warm_up=False,
    )


class Client:
    """An engine process and what it has said."""

    def __init__(self, config: EngineConfig) -> None:
        self.events: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self.engine = EngineProcess(config, blas="off")
        self.engine.start(self.events.put)

    def until_end(self, name: str) -> list[Event]:
        """All events of a request."""
        seen: list[Event] = []
        while not seen or not isinstance(seen[-1], Finished | Failed):
            seen += [e for e in self.events.get(timeout=60) if e.request_id == name]
        return seen

    def until_token(self) -> None:
        """Wait until somebody gets a token."""
        while not any(isinstance(e, Token) for e in self.events.get(timeout=60)):
            pass


@pytest.fixture
def client(config: EngineConfig) -> Iterator[Client]:
    c = Client(config)
    yield c
    c.engine.stop(5.0)


def test_a_whole_life_and_another_one(client: Client, config: EngineConfig) -> None:
    client.engine.submit(EngineRequest("a", PROMPT, 8))  # before it is loaded
    first = client.until_end("a")
    admitted = first[0]
    assert isinstance(admitted, Admitted) and admitted.trail is not None
    assert (admitted.cached_memory, admitted.cached_disk, admitted.trail.shared) == (0, 0, 0)
    tokens = [e.token for e in first if isinstance(e, Token)]
    assert len(tokens) == 8
    end = first[-1]
    assert isinstance(end, Finished) and end.reason is FinishReason.LENGTH
    assert client.engine.state() is EngineState.READY
    assert client.engine.stop(10.0) == 0
    assert client.engine.state() is EngineState.STOPPED
    snapshot = client.engine.snapshot()
    assert snapshot is not None and snapshot.cache_note == ""
    assert client.engine.stop(1.0) == 0

    second = Client(config)
    second.engine.submit(EngineRequest("b", (*PROMPT, *tokens, 5), 8))
    events = second.until_end("b")
    admitted, size = events[0], len(PROMPT) + 8
    assert isinstance(admitted, Admitted) and admitted.trail is not None
    assert (admitted.cached_memory, admitted.cached_disk) == (0, size), "the blocks were written"
    assert (admitted.trail.shared, admitted.trail.nearest) == (size, None)
    second.engine.submit(EngineRequest("c", PROMPT, 100_000))
    second.until_token()
    second.engine.abort("c")
    end = second.until_end("c")[-1]
    assert isinstance(end, Finished) and end.reason is FinishReason.ABORT
    assert second.engine.stop(10.0) == 0


def test_a_killed_engine_fails_what_it_was_doing(client: Client) -> None:
    client.engine.submit(EngineRequest("a", PROMPT, 100_000))
    client.engine.submit(EngineRequest("b", PROMPT, 100_000))
    client.until_token()
    assert client.engine.pid is not None
    os.kill(client.engine.pid, signal.SIGKILL)
    codes: dict[str, FailureCode] = {}
    while len(codes) < 2:
        for event in client.events.get(timeout=60):
            if isinstance(event, Failed):
                assert "-9" in event.message
                codes[event.request_id] = event.code
    assert codes == {"a": FailureCode.ENGINE, "b": FailureCode.ENGINE}
    assert client.engine.state() is EngineState.FAILED
    assert "-9" in (client.engine.error() or "")
    client.engine.submit(EngineRequest("late", PROMPT, 1))
    assert client.until_end("late")[-1].code is FailureCode.ENGINE
    assert client.engine.stop(1.0) == -9


def test_an_engine_that_hangs_is_killed_at_the_limit(client: Client) -> None:
    client.engine.submit(EngineRequest("a", PROMPT, 100_000))
    client.until_token()
    assert client.engine.pid is not None
    os.kill(client.engine.pid, signal.SIGSTOP)
    assert client.engine.stop(0.0) == -9
    end = client.until_end("a")[-1]
    assert isinstance(end, Failed) and end.code is FailureCode.ENGINE


def test_a_model_that_can_not_be_loaded(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
    client = Client(EngineConfig("broken", str(tmp_path), log_level="error"))
    client.engine.submit(EngineRequest("a", PROMPT, 1))
    (end,) = client.until_end("a")
    assert isinstance(end, Failed) and end.code is FailureCode.ENGINE
    assert "can't load the model" in end.message
    assert client.engine.state() is EngineState.FAILED
    assert client.engine.error() == end.message
    assert client.engine.stop(5.0) == 1


def test_an_engine_whose_server_is_gone_writes_what_it_has_and_ends(config: EngineConfig) -> None:
    """Its delay is far longer than the test, so only the end can have written the blocks."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "omlx.engine.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    with child:
        settings = {**asdict(config), "write_delay_s": 3600.0}
        send(ours, {"kind": "start", "config": settings})
        send(ours, request_frame(EngineRequest("a", PROMPT, 4)))
        events: list[Event] = []
        while not any(isinstance(e, Finished) for e in events):
            frame = receive(ours)
            assert frame is not None
            events += events_from(frame) if frame["kind"] == "events" else []
        cache = Path(config.cache_dir)
        assert list(cache.rglob("*.safetensors")) == []
        send(ours, request_frame(EngineRequest("b", PROMPT, 100_000)))  # still at work
        ours.close()
        assert child.wait(30) == 0
    counts = sorted(int(p.name.split(".")[2]) for p in cache.rglob("*.safetensors"))
    assert counts[-3:] == [32, 32, 32]
    assert sum(counts) >= len(PROMPT) + 4


def test_the_parent_never_imports_mlx() -> None:
    code = (
        "import sys, omlx.engine.process, omlx.engine.pool\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('mlx', 'mlx_lm', 'transformers')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_an_engine_that_does_not_read_holds_nobody_up_and_no_frames(client: Client) -> None:
    """What waits for it are the requests themselves: they become frames when it reads again."""
    client.engine.submit(EngineRequest("first", PROMPT, 1))
    client.until_end("first")
    tokens = tuple(range(200_000))
    names = [f"r{i}" for i in range(64)]
    assert client.engine.pid is not None
    os.kill(client.engine.pid, signal.SIGSTOP)
    tracemalloc.start()
    try:
        started = time.monotonic()
        for name in names:
            client.engine.submit(EngineRequest(name, tokens, 1))
            client.engine.abort(name)
            client.engine.allow(10**9)
        seconds = time.monotonic() - started
        sizes = sorted(trace.size for trace in tracemalloc.take_snapshot().traces)
    finally:
        tracemalloc.stop()
        os.kill(client.engine.pid, signal.SIGCONT)
    size = len(orjson.dumps(request_frame(EngineRequest("r", tokens, 1))))
    # One may be on its way, in a buffer that its serializer has made larger than it.
    assert sum(sizes[:-1]) < 4 * size, "64 frames would be 64 times as much"
    assert seconds < 5, "the first of them alone is more than a socket holds"
    ends = {name: client.until_end(name)[-1] for name in names[-1:]}
    assert isinstance(ends[names[-1]], Finished | Failed)
