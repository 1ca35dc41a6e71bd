"""Streams that run while a test does something to their engine."""

import json
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.live import Live, chat, wait_until


@dataclass
class Stream:
    """One streamed request: its text, when each piece came, and what went wrong."""

    body: dict[str, Any]
    path: str = "/v1/chat/completions"
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish: str | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)

    def run(self, live: Live) -> None:
        try:
            for _, line in live.stream(self.path, self.body):
                if line.startswith("data: {"):
                    self._take(json.loads(line[6:]))
        except Exception as error:  # whatever a client would see
            self.errors.append(repr(error))

    def _take(self, event: Any) -> None:
        if "error" in event:
            self.errors.append(json.dumps(event["error"]))
        for choice in event.get("choices", ()):
            self._add(choice["delta"].get("reasoning_content"))
            self._add(choice["delta"].get("content"))
            for call in choice["delta"].get("tool_calls", ()):
                self._add(call["function"].get("name"))
                self._add(call["function"].get("arguments"))
            self.finish = choice["finish_reason"] or self.finish
        delta = event.get("delta") or {}
        self._add(delta.get("text"))
        self.finish = delta.get("stop_reason") or self.finish

    def _add(self, text: str | None) -> None:
        if text:
            self.texts.append(text)
            self.times.append(time.monotonic())


class Streams:
    """Streams that run at the same time, each on a thread."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.streams: list[Stream] = []
        self._threads: list[threading.Thread] = []

    def start(self, *streams: Stream) -> None:
        for stream in streams:
            self.streams.append(stream)
            thread = threading.Thread(target=stream.run, args=(self.live,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self, timeout_s: float = 900) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "a stream did not end"


def model(live: Live, model_id: str) -> Any:
    """The status of one model."""
    (found,) = [m for m in live.status()["models"] if m["id"] == model_id]
    return found


def send_signal(live: Live, model_id: str, number: int) -> int:
    """Send a signal to the engine process of a model; its pid."""
    pid = model(live, model_id)["pid"]
    os.kill(pid, number)
    return pid


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_state(live: Live, model_id: str, state: str, timeout_s: float = 120) -> None:
    wait_until(lambda: model(live, model_id)["state"] == state, timeout_s)


def answer_of(live: Live, body: dict[str, Any]) -> str:
    """The text of an answer that isn't streamed."""
    status, answer = live.post("/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


def ask(live: Live, name: str, text: str = "Hello.") -> str:
    """What a model answers."""
    return answer_of(live, chat(name, text))


def send(live: Live, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent; nothing of the answer is read."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", live.port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock
