"""Point 6: a client that closes its socket in queue, in prefill, in decode: the row is gone within
one step, and the completed blocks stay."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import ask, words
from tests.live import Live, chat, wait_until


@pytest.fixture
def live(demo: Path, tmp_path: Path) -> Iterator[Live]:
    args = ("--model-dir", str(demo.parent), "--max-concurrent-requests", "1")
    with Live(*args, home=tmp_path) as server:
        yield server


def send(live: Live, body: dict[str, object]) -> socket.socket:
    data = json.dumps({**body, "stream": True}).encode()
    sock = socket.create_connection(("127.0.0.1", live.port))
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    return sock


def stages(live: Live) -> tuple[int, int, int]:
    s = live.model_status()
    return s["waiting"] + s["loading"], s["prefilling"], s["decoding"]


def test_in_prefill_then_resume(live: Live, demo: Path, figure: Figure) -> None:
    text = words(1960, 11)
    sock = send(live, chat(demo.name, text))
    wait_until(lambda: stages(live)[1] == 1)
    time.sleep(6)
    sock.close()
    closed = time.monotonic()
    wait_until(lambda: stages(live) == (0, 0, 0))
    gone_s = time.monotonic() - closed
    size, cached, _ = ask(live, demo.name, text)
    assert cached >= 256 and cached % 256 in (0, cached % 256)
    assert cached < size
    figure(f"in prefill: gone after {gone_s:.2f} s; the same prompt then hits {cached} of {size}")


def test_in_decode(live: Live, demo: Path, figure: Figure) -> None:
    sock = send(live, chat(demo.name, "Tell me a long story. " + words(300, 12), max_tokens=2000))
    wait_until(lambda: stages(live)[2] == 1)
    sock.close()
    closed = time.monotonic()
    wait_until(lambda: stages(live) == (0, 0, 0))
    gone_s = time.monotonic() - closed
    assert live.model_status()["counters"]["blocks_stored"] >= 1
    figure(f"in decode: gone after {gone_s:.2f} s")


def test_in_queue(live: Live, demo: Path, figure: Figure) -> None:
    first = send(live, chat(demo.name, "Count. " + words(250, 13), max_tokens=400))
    wait_until(lambda: stages(live)[1] + stages(live)[2] == 1)
    second = send(live, chat(demo.name, words(400, 14)))
    wait_until(lambda: stages(live)[0] == 1)
    second.close()
    closed = time.monotonic()
    wait_until(lambda: stages(live)[0] == 0)
    gone_s = time.monotonic() - closed
    assert sum(stages(live)) == 1, "the running request goes on"
    first.close()
    wait_until(lambda: stages(live) == (0, 0, 0))
    assert live.status()["requests"]["aborted"] == 2
    figure(f"in queue: gone after {gone_s:.2f} s, the running one went on")
