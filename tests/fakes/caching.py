"""An OpenAI-compatible server with a prefix cache that can be broken; words are tokens.

It knows nothing about models: an answer is a word that depends on the whole prompt.
"""

import hashlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from omlx.bench.client import Target

Body = dict[str, Any]


@dataclass
class Habits:
    """What the server does; the defaults are those of a good one.

    `tools`: "sorted" gives them a stable order, "sent" leaves them, "hidden" prints none. `busy`
    is how many requests at once it takes. `margin` is by how much its tokens lead.
    """

    is_caching: bool = True
    granularity: int = 1
    tools: str = "sorted"
    tool_order: bool | None = True
    is_omlx: bool = True
    has_usage: bool = True
    has_counts: bool = True
    is_shared: bool = True
    is_kept: bool = True
    tells_parts: bool = True
    wrong_hits: bool = False
    wrong_at_once: bool = False
    margin: float = 5.0
    busy: int = 1000
    window: int | None = 8192
    from_disk: bool = False
    pause_s: float = 0.0
    fails_at: int | None = None
    answer_words: int = 1


@dataclass
class Seen:
    """What came, and what is stored."""

    bodies: list[Body] = field(default_factory=list)
    stored: list[list[str]] = field(default_factory=list)
    recent: list[Body] = field(default_factory=list)
    written: int = 0
    running: int = 0
    most_running: int = 0


class CachingServer:
    """Serves while it is entered."""

    def __init__(self, habits: Habits | None = None) -> None:
        self.habits = habits or Habits()
        self.seen = Seen()
        self.started = time.monotonic()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def target(self) -> Target:
        return Target(self.url, "fake")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def restart(self) -> Target:
        """What it has in memory is lost; what is on disk is not, unless nothing is kept."""
        self.started = time.monotonic()
        if not self.habits.is_kept:
            self.seen.stored.clear()
        self.habits.from_disk = True
        return self.target

    def prompt(self, body: Body) -> list[str]:
        """The words of a prompt, with a template's around each message."""
        words: list[str] = []
        tools = [json.dumps(tool) for tool in body.get("tools", [])]
        if self.habits.tools == "sorted":
            tools.sort()
        for message in body["messages"]:
            words += [f"<{message['role']}>", *message["content"].split()]
            if message["role"] == "system" and self.habits.tools != "hidden":
                words += [word for tool in tools for word in tool.split()]
        return [*words, "<assistant>"]

    def answer(self, body: Body) -> tuple[int, Body]:
        """The whole answer as one object: its text and its usage."""
        habits, seen = self.habits, self.seen
        words = self.prompt(body)
        with self._lock:
            seen.bodies.append(body)
            if len(seen.bodies) == habits.fails_at:
                return 500, {"error": {"message": "it broke"}}
            seen.running += 1
            seen.most_running = max(seen.most_running, seen.running)
            is_busy = seen.running > habits.busy
            is_wrong = habits.wrong_at_once and seen.running > 1
            cached = self._cached(words)
            if habits.is_shared:
                seen.stored.append(words)
        time.sleep(habits.pause_s)
        with self._lock:
            seen.running -= 1
            if is_busy:
                return 503, {"error": {"message": "busy"}}
            if not habits.is_shared:
                seen.stored.append(words)
            seen.written += 10 * (len(words) - cached)
            return 200, self._told(body, words, cached, is_wrong=is_wrong)

    def _cached(self, words: list[str]) -> int:
        if not self.habits.is_caching:
            return 0
        most = max((_common(words, other) for other in self.seen.stored), default=0)
        most = min(most, len(words) - 1)
        return most - most % self.habits.granularity

    def _told(self, body: Body, words: list[str], cached: int, *, is_wrong: bool) -> Body:
        habits = self.habits
        salt = b"wrong" if is_wrong or (habits.wrong_hits and cached) else b""
        digest = hashlib.sha256(salt + " ".join(words).encode()).hexdigest()
        text = " ".join(digest[:6] for _ in range(min(habits.answer_words, body["max_tokens"])))
        name = f"chatcmpl-{next(self._numbers):08d}"
        tiers = (0, cached) if habits.from_disk else (cached, 0)
        self.seen.recent.insert(
            0,
            {
                "id": name.removeprefix("chatcmpl-"),
                "cached_memory": tiers[0],
                "cached_disk": tiers[1],
                "uncached": len(words) - cached,
                "part": "tool 0" if habits.tells_parts and cached < len(words) - 1 else None,
            },
        )
        usage: Body = {"prompt_tokens": len(words), "completion_tokens": len(text.split())}
        if habits.has_counts:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"id": name, "text": text, "usage": usage if habits.has_usage else None}

    def events(self, body: Body, told: Body) -> Iterator[Body]:
        """The chunks of a streamed answer."""
        head = {"id": told["id"], "object": "chat.completion.chunk", "model": "fake"}

        def chunk(delta: Body, finish: str | None = None, **more: Any) -> Body:
            return {
                **head,
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}],
            }

        yield chunk({"role": "assistant", "content": ""})
        text = told["text"]
        scores: Body = {}
        if body.get("logprobs"):
            top = [
                {"token": text, "logprob": -0.5},
                {"token": "?", "logprob": -0.5 - self.habits.margin},
            ]
            scores = {
                "logprobs": {"content": [{"token": text, "logprob": -0.5, "top_logprobs": top}]}
            }
        yield chunk({"content": text}, **scores)
        yield chunk({}, "stop")
        if told["usage"] is not None:
            yield {**head, "choices": [], "usage": told["usage"]}

    def page(self, path: str) -> Body | None:
        """What a GET is answered with; None for nothing of the kind."""
        habits = self.habits
        if path == "/v1/models":
            window = {} if habits.window is None else {"context_window": habits.window}
            return {"data": [{"id": "fake", **window}]}
        if not habits.is_omlx:
            return None
        counters = {"bytes_written": self.seen.written}
        model = {"id": "fake", "counters": counters, "writes": {"queued_bytes": 0}}
        settings: Mapping[str, object] = {
            "prompt.tool_order": habits.tool_order,
            "cache.block_size": 16,
            "cache.load": "auto",
        }
        return {
            "/health": {"status": "ready"},
            "/admin/api/status": {
                "uptime_s": time.monotonic() - self.started,
                "models": [model],
                "recent": self.seen.recent[:20],
            },
            "/admin/api/settings": {
                "settings": {name: {"value": value} for name, value in settings.items()}
            },
        }.get(path)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = fake.page(self.path)
                self._send(404 if page is None else 200, page or {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, told = fake.answer(body)
                if status != 200:
                    self._send(status, told)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in fake.events(body, told):
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")

            def _send(self, status: int, page: Body) -> None:
                content = json.dumps(page).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


def _common(a: list[str], b: list[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))  # noqa: B905
