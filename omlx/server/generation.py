"""One request and its answer in no dialect: what every dialect is turned into and made from.

Knows nothing about JSON, templates or engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omlx.engine.request import FinishReason, RequestClass
from omlx.server.context import Message
from omlx.server.errors import ApiError, Flavor, bad_field

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request says about sampling; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A request to continue a conversation, as the template will see it."""

    model: str
    messages: Sequence[Message]
    wishes: Wishes = field(default_factory=Wishes)
    stop: tuple[str, ...] = ()
    is_stream: bool = False
    # Whether the stream ends with the usage, where the dialect lets the client choose.
    wants_usage: bool = True
    tools: Sequence[Message] = ()
    # How urgent it is, where the body says so.
    request_class: RequestClass | None = None
    # Where the body has each message, where that is not simply its own list; -1 is its system.
    places: Sequence[int] = ()
    # Where the body's system has each text of it that is used; the same.
    system_places: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request; `cached` of the prompt's tokens were not computed."""

    prompt: int
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Began:
    """The request left the queue, so what it takes from the cache is known."""


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is complete; `stop` is the stop string that ended it."""

    reason: FinishReason
    stop: str | None = None


Piece = Began | Text | Ended


class Reply(Protocol):
    """Writes the answer to one request in a dialect; each method returns bytes to send."""

    def head(self) -> bytes:
        """What goes out with the headers of a stream."""
        ...

    def begin(self, usage: Usage) -> bytes:
        """What precedes the text of a stream; the usage may not be final."""
        ...

    def text(self, text: str) -> bytes:
        """More text of a stream."""
        ...

    def keepalive(self) -> bytes:
        """What a client takes as a sign of life in a stream."""
        ...

    def end(self, ended: Ended, usage: Usage) -> bytes:
        """The end of a stream."""
        ...

    def error(self, error: ApiError) -> bytes:
        """The end of a stream that failed."""
        ...

    def whole(self, text: str, ended: Ended, usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        ...


class Dialect(Protocol):
    """One API: reads its requests and writes its replies."""

    @property
    def flavor(self) -> Flavor:
        """In whose shape its errors are."""
        ...

    def decode(self, body: bytes) -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        ...

    def reply(self, request_id: str, model: str, created: int, *, wants_usage: bool) -> Reply:
        """The writer of the answer to one request."""
        ...


def number(
    value: float | None, param: str, *, low: float, high: float = _LARGEST, exclusive: bool = False
) -> float | None:
    """A number within its limits, else a 400 that names the field."""
    if value is None:
        return None
    if exclusive and value <= low:
        raise bad_field(param, f"Must be more than {low:g}")
    if not low <= value <= high:
        limit = f"at least {low:g}" if high >= _LARGEST else f"between {low:g} and {high:g}"
        raise bad_field(param, f"Must be {limit}")
    return value


def whole(value: float | None, param: str, *, low: int, high: int = _LARGEST) -> int | None:
    """A whole number, also written as 8.0, cut to `high`; else a 400 that names the field."""
    if value is None:
        return None
    if value != int(value):
        raise bad_field(param, "Must be a whole number")
    if value < low:
        raise bad_field(param, f"Must be at least {low}")
    return min(int(value), high)


def seed(value: float | None, param: str) -> int | None:
    """A seed as 63 bits, whatever its sign and size; else a 400 that names the field."""
    if value is None:
        return None
    if value != int(value):
        raise bad_field(param, "Must be a whole number")
    return int(value) % 2**63


def stop_strings(stops: list[str], param: str) -> tuple[str, ...]:
    """Stop strings within their limits, else a 400 that names the field."""
    if len(stops) > MAX_STOPS:
        raise bad_field(param, f"At most {MAX_STOPS} stop strings are accepted")
    for index, stop in enumerate(stops):
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            limits = f"1 to {MAX_STOP_CHARS} characters"
            raise bad_field(f"{param}[{index}]", f"A stop string must have {limits}")
    return tuple(stops)


def content(texts: list[str]) -> str | list[dict[str, str]]:
    """Text parts as a message's content: one is a plain string, so that both forms are the same."""
    if len(texts) < 2:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]
