"""Point 5: 20,000 hostile bodies, headers and paths against the real server process.

None is answered with a 500 or not at all, the process does not grow, and streams that run beside
them say what they say alone. OMLX_FUZZ_REQUESTS changes the number.
"""

import json
import os
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.acceptance.conftest import Figure
from tests.live import Live, chat

NUM_REQUESTS = int(os.environ.get("OMLX_FUZZ_REQUESTS", "20000"))
MAX_ANSWER_S = 20.0
MAX_GROWTH_BYTES = 100_000_000
NUM_WARM = 500
GET_PATHS = [
    "/", "/health", "/metrics", "/v1/models", "/admin/api/status", "/admin/api/models",
    "/admin/api/cache", "/admin/api/requests", "/admin/api/settings", "/admin/api/keys",
]  # fmt: skip
POST_PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/responses",
]  # fmt: skip
KEYS = [
    "messages", "input", "prompt", "system", "tools", "tool_choice", "stop", "temperature", "top_p",
    "n", "seed", "logit_bias", "response_format", "stream", "stream_options", "thinking", "role",
    "content", "type", "text", "name", "arguments", "parameters", "metadata", "logprobs",
]  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["user", "assistant", "tool", "system", "text", "image_url", "function"])
    | st.sampled_from([10**12, -1, 2**63, 1e308, "../../etc/passwd", "\0", "a" * 5000])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=12,
)
RAW_BODIES = st.binary(max_size=200) | st.sampled_from(
    [b"", b"{", b"[" * 10_000, b'{"a":' * 5000, b'{"model":"\xff"}', b'{"model":NaN}', b'"\\ud800"']
)
HEADER_NAMES = [
    "Content-Type", "Content-Encoding", "Host", "Origin", "Authorization", "X-Api-Key", "Accept",
    "Content-Length", "Transfer-Encoding", "Expect", "Connection", "X-Omlx-Class", "Range",
    "Anthropic-Version", "X-Omlx-Cache-Store", "X-Omlx-Cache-Salt", "X-Session-Id",
    "Cookie", "Upgrade", "X-" + "y" * 50,
]  # fmt: skip
HEADER_VALUES = st.binary(max_size=30) | st.sampled_from(
    [b"application/json", b"gzip", b"null", b"evil.example", b"-1", b"chunked", b"100-continue",
     b"Bearer x", b"close", b"x" * 20_000, b"99999999999999999999", b"bytes=0-1", b"batch"]
)  # fmt: skip
ODD_PATHS = st.binary(max_size=40).map(lambda raw: "/" + raw.hex()) | st.sampled_from(
    ["/v1/models/../../etc/passwd", "/v1/models/%00", "/%ff", "//", "/v1/models/x/load", "*",
     "/v1/responses/%2e%2e", "/v1/models/" + "a" * 5000, "/?" + "a=b&" * 500, "http://x/"]
)  # fmt: skip


@dataclass
class Found:
    """What came of all requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    bad: list[str] = field(default_factory=list)


class Client:
    """One keep-alive connection for whole requests; a new one wherever the server closes it."""

    def __init__(self, port: int, found: Found) -> None:
        self._port = port
        self._found = found
        self._sock: socket.socket | None = None

    def send(self, data: bytes, *, ends: bool) -> None:
        """Send bytes; `ends` where the client sends no more after them."""
        started = time.monotonic()
        answer = self._once(data, ends=ends)
        if not answer and not ends:
            answer = self._once(data, ends=ends)  # the server had closed an idle connection
        self._found.slowest_s = max(self._found.slowest_s, time.monotonic() - started)
        status = answer[9:12].decode("latin-1") if answer else "closed"
        self._found.statuses[status] += 1
        if status in ("500", "hang") or (answer and not answer.startswith(b"HTTP/1.1 ")):
            self._found.bad.append(f"{status}: {data[:300]!r}")

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _once(self, data: bytes, *, ends: bool) -> bytes:
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._port), timeout=MAX_ANSWER_S)
        answer = b""
        try:
            self._sock.sendall(data)
            if ends:
                self._sock.settimeout(0.02)  # it may wait for more, and is left alone then
            while more := self._sock.recv(65536):
                answer += more
                if _is_whole(answer):
                    break
        except TimeoutError:
            if not ends:
                answer = b"HTTP/1.1 hang"
        except OSError:
            pass
        if ends or not answer or b"close" in answer[:2000].lower() or b"hang" in answer[:13]:
            self.close()
        return answer


def _is_whole(answer: bytes) -> bool:
    head, gap, body = answer.partition(b"\r\n\r\n")
    if not gap:
        return False
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return body.endswith(b"0\r\n\r\n")
    _, found, rest = lower.partition(b"content-length: ")
    return not found or len(body) >= int(rest.split(b"\r\n")[0])


def request(method: str, path: str, headers: list[tuple[str, bytes]], body: bytes) -> bytes:
    head = [f"{method} {path} HTTP/1.1".encode("latin-1", "replace"), b"Host: localhost"]
    if body or method == "POST":
        head += [b"Content-Length: %d" % len(body)]
    head += [f"{name}: ".encode() + value for name, value in headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@st.composite
def bodies(draw: Any, model: str) -> bytes:
    """Mostly objects that look like requests; few of them work."""
    if draw(st.integers(0, 5)) == 0:
        return draw(RAW_BODIES)
    fields = {"model": model, "max_tokens": 1, "max_output_tokens": 1}
    if draw(st.booleans()):
        fields["messages"] = [{"role": "user", "content": draw(SCALARS)}]
    fields |= draw(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
    if draw(st.integers(0, 9)) == 0:
        fields["model"] = draw(st.text(max_size=30))
    return json.dumps(fields).encode()


@st.composite
def requests(draw: Any, model: str) -> tuple[bytes, bool]:
    """The bytes of a request, and whether nothing follows them."""
    kind = draw(st.integers(0, 9))
    body = draw(bodies(model))
    if kind <= 5:
        return request("POST", draw(st.sampled_from(POST_PATHS)), [], body), False
    headers = draw(
        st.lists(st.tuples(st.sampled_from(HEADER_NAMES), HEADER_VALUES), min_size=1, max_size=3)
    )
    method = draw(st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "DELETE", "X" * 30, "get"]))
    if kind <= 7:
        path = draw(st.sampled_from(GET_PATHS + POST_PATHS) | ODD_PATHS)
        return request(method, path, headers, body), True
    if kind == 8:
        whole = request("POST", draw(st.sampled_from(POST_PATHS)), [], body)
        return whole[: draw(st.integers(1, len(whole)))], True
    return draw(st.binary(min_size=1, max_size=300)), True


class Streams(threading.Thread):
    """Asks the same again and again, and remembers each answer that differs from the first."""

    def __init__(self, server: Live, model: str) -> None:
        super().__init__()
        self._server = server
        self._model = model
        self._ended = threading.Event()
        self.num_streams = 0
        self.problems: list[str] = []
        self.wanted = self._ask()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            try:
                said = self._ask()
            except Exception as error:
                said = repr(error)
            self.num_streams += 1
            if said != self.wanted:
                self.problems.append(said[:300])

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _ask(self) -> str:
        body = chat(self._model, "Well behaved", max_tokens=16)
        said = ""
        for _, line in self._server.stream("/v1/chat/completions", body):
            if line.startswith("data: {"):
                choices = json.loads(line[6:])["choices"]
                said += "".join(one["delta"].get("content") or "" for one in choices)
        return said


def test_hostile_requests(figure: Figure, tiny_model: Path, tmp_path: Path) -> None:
    """No 500, no hang, no growth, other streams unaffected."""
    found = Found()
    with Live("--model-dir", str(tiny_model.parent), home=tmp_path) as server:
        process = psutil.Process(server.process.pid)
        model = server.model_status()["id"]
        client, streams = Client(server.port, found), Streams(server, model)
        streams.start()
        before: list[int] = []
        try:
            _send_all(client, model, found, lambda: before.append(process.memory_info().rss))
        finally:
            client.close()
            streams.end()
        after = process.memory_info().rss
        assert server.get("/health")["status"] == "ready"
        restarts = server.model_status()["restarts"]
    counted = ", ".join(f"{one[1]} × {one[0]}" for one in sorted(found.statuses.items()))
    figure(f"{sum(found.statuses.values())} hostile requests: {counted}")
    figure(f"slowest answer {found.slowest_s:.2f} s; engine restarts {restarts}")
    figure(f"RSS {before[0] / 1e6:.0f} MB after {NUM_WARM}, {after / 1e6:.0f} MB at the end")
    figure(f"{streams.num_streams} streams beside them, {len(streams.problems)} differ")
    assert not found.bad, found.bad[:5]
    assert found.slowest_s < MAX_ANSWER_S
    assert after - before[0] < MAX_GROWTH_BYTES
    assert restarts == 0
    assert streams.num_streams > 0
    assert not streams.problems, streams.problems[:3]


def _send_all(client: Client, model: str, found: Found, on_warm: Any) -> None:
    is_warm = False

    @seed(20)
    @settings(
        max_examples=NUM_REQUESTS,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(model))
    def send(made: tuple[bytes, bool]) -> None:
        nonlocal is_warm
        client.send(made[0], ends=made[1])
        if not is_warm and sum(found.statuses.values()) >= min(NUM_WARM, NUM_REQUESTS // 2):
            is_warm = True
            on_warm()

    send()
