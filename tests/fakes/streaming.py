"""A server on a free port whose answers are scripts: bytes, pauses, early ends, silence.

It knows nothing about HTTP but that a request ends with as many bytes as its header tells.
"""

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

Send = Callable[[bytes], None]
Script = Callable[["Talk"], None]


def event(value: object) -> bytes:
    """A server-sent event with JSON in it."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> bytes:
    """A chunk of a chat."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def text(piece: str, finish: str | None = None) -> bytes:
    """A chunk of a completion."""
    return event({"choices": [{"index": 0, "text": piece, "finish_reason": finish}]})


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    """The chunk with the usage, which has no choice."""
    found: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return event({"choices": [], "usage": found})


def answer(status: str, body: object) -> bytes:
    """A whole answer that is no stream."""
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + data


class Talk:
    """One connection as a script sees it."""

    def __init__(self, sock: socket.socket, head: str, body: Any, over: threading.Event) -> None:
        self.head = head
        self.body = body
        self._sock = sock
        self._over = over

    def send(self, *parts: bytes) -> None:
        """Send bytes, each part by itself."""
        for part in parts:
            self._sock.sendall(part)

    def hang(self) -> None:
        """Say nothing more until the test is over."""
        self._over.wait()

    def repeat(self, part: bytes, pause_s: float) -> None:
        """Send the same again and again until the test is over or nobody listens."""
        with suppress(OSError):
            while not self._over.wait(pause_s):
                self._sock.sendall(part)


class StreamServer:
    """Answers each request by the script while it is entered; `talks` are kept in order.

    `url` is the base of the API.
    """

    def __init__(self, script: Script) -> None:
        self.talks: list[Talk] = []
        self._script = script
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(sock,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                piece = sock.recv(65536)
                if not piece:
                    return
                data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            length = 0
            for line in head.decode().split("\r\n"):
                if line.lower().startswith("content-length:"):
                    length = int(line.split(":")[1])
            while len(body) < length:
                body += sock.recv(65536)
            talk = Talk(sock, head.decode(), json.loads(body) if body else None, self._over)
            self.talks.append(talk)
            self._script(talk)
