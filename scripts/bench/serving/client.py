"""A client that costs little: it writes requests to sockets and counts what comes back.

Knows nothing about what the events mean, but how they begin and how an answer ends.
"""

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
_END = b"\r\n0\r\n\r\n"  # the last part of a body that comes in parts
_EVENT = b"\ndata: "
_KEPT = 16
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """Times of one request, on the monotonic clock, and all that came."""

    begun: float
    first_byte: float
    ended: float
    data: bytes


def http_request(dialect: str, body: bytes) -> bytes:
    """The bytes of a request."""
    head = (
        f"POST {PATHS[dialect]} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(port: int) -> socket.socket:
    """A connection that sends at once."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def ask(sock: socket.socket, request: bytes) -> Answered:
    """Send a request and read its answer to the end; the connection can be used again."""
    begun = time.monotonic()
    sock.sendall(request)
    data = bytearray(sock.recv(1 << 16))
    first_byte = time.monotonic()
    while not data.endswith(_END):
        piece = sock.recv(1 << 16)
        assert piece, "the connection was closed: " + data.decode(errors="replace")[:500]
        data += piece
    ended = time.monotonic()
    assert data.startswith(b"HTTP/1.1 200"), bytes(data[:1000])
    return Answered(begun, first_byte, ended, bytes(data))


class Streams:
    """Streams that run side by side, each on a connection of its own."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.num_events = 0
        self.num_bytes = 0
        self._select = selectors.DefaultSelector()
        self._tails: dict[socket.socket, bytes] = {}
        for request in requests:
            sock = connect(port)
            sock.sendall(request)
            self._tails[sock] = b""
            self._select.register(sock, selectors.EVENT_READ)

    @property
    def num_open(self) -> int:
        """How many have not ended."""
        return len(self._tails)

    def read(self, is_enough: Callable[[], bool]) -> None:
        """Count what comes until it is enough, or all have ended (mutates)."""
        deadline = time.monotonic() + 10 * _PATIENCE_S
        while self._tails and not is_enough():
            assert time.monotonic() < deadline, "the streams do not end"
            for key, _ in self._select.select(0.05):
                self._take(key.fileobj)

    def _take(self, sock: socket.socket) -> None:
        piece = sock.recv(1 << 16)
        assert piece, "a connection was closed"
        tail = self._tails[sock]
        data = tail + piece
        self.num_events += data.count(_EVENT) - tail.count(_EVENT)
        self.num_bytes += len(piece)
        self._tails[sock] = data[-_KEPT:]
        if data.endswith(_END):
            self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        self._select.unregister(sock)
        del self._tails[sock]
        sock.close()

    def close(self) -> None:
        """End all that still run."""
        for sock in list(self._tails):
            self._forget(sock)
        self._select.close()
