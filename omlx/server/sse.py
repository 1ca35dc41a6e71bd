"""Server-sent events as bytes.

Knows nothing about what they carry; the data must be one line of JSON.
"""

CONTENT_TYPE = "text/event-stream; charset=utf-8"
# Proxies must not collect a stream.
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def data(payload: bytes) -> bytes:
    """An event without a name."""
    return b"data: " + payload + b"\n\n"


def event(name: str, payload: bytes) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """A line that is no event."""
    return b": " + text.encode() + b"\n\n"
