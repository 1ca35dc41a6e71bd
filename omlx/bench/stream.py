"""A streamed answer of an OpenAI-compatible server, event by event, with the time of each.

Knows nothing about connections; bytes come in, with the moment at which they did.

Only tokens count: keep-alives, chunks that bring a role or an empty text, and usage are no content.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from omlx.bench.failure import Fault, RequestError

_MAX_LINE_BYTES = 16_000_000
_DATA = b"data:"
_DONE = b"[DONE]"
# Where servers put what a model thinks.
_REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Score:
    """A token of an answer, and by how much it was likelier than the next one.

    `margin` is in nats, below 0 where another one was likelier; None where that was not said.
    """

    text: str
    margin: float | None


@dataclass(slots=True)
class Heard:
    """What a stream has brought so far; times are those given to `Events.feed`, in seconds.

    `times` has one entry for each event with content. Tokens by kind are None until usage came.
    `scores` are there if the request asked for `logprobs`; `id` is the answer's.
    """

    times: list[float] = field(default_factory=list[float])
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    tool_calls: list[str] = field(default_factory=list[str])
    scores: list[Score] = field(default_factory=list[Score])
    id: str = ""
    finish: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    num_keep_alives: int = 0
    num_empty: int = 0
    is_done: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the stream said that it has ended."""
        return self.is_done or bool(self.finish)


class Events:
    """Splits the bytes of a stream into events and takes them into `heard`; one thread."""

    def __init__(self) -> None:
        self.heard = Heard()
        self._rest = bytearray()

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that came at `now` (mutates); RequestError for an error or garbage."""
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > _MAX_LINE_BYTES:
                raise RequestError(Fault.GARBAGE, "a line of the stream has no end")
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._take_line(line.rstrip(b"\r"), now)

    def _take_line(self, line: bytes, now: float) -> None:
        if line.startswith(b":"):
            self.heard.num_keep_alives += 1
        elif line.startswith(_DATA):
            payload = line[len(_DATA) :].strip()
            if payload == _DONE:
                self.heard.is_done = True
            elif payload:
                self._take(_event(payload), now)

    def _take(self, event: Mapping[str, object], now: float) -> None:
        error = event.get("error")
        if error:
            said = error_text(error)
            raise RequestError(Fault.EVENT, f"the stream brings an error: {said}")
        self._take_usage(event.get("usage"))
        name = event.get("id")
        if isinstance(name, str) and not self.heard.id:
            self.heard.id = name
        choices = event.get("choices")
        found = cast(list[object], choices) if isinstance(choices, list) else []
        has_content = False
        for choice in found:
            if isinstance(choice, dict):
                has_content |= self._take_choice(cast(dict[str, object], choice))
        if has_content:
            self.heard.times.append(now)
        else:
            self.heard.num_empty += 1

    def _take_choice(self, choice: Mapping[str, object]) -> bool:
        heard = self.heard
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            heard.finish = finish
        heard.scores += _scores(choice.get("logprobs"))
        said = _add(heard.text, choice.get("text"))  # of /v1/completions
        raw = choice.get("delta")
        if not isinstance(raw, dict):
            return said
        delta = cast(dict[str, object], raw)
        said |= _add(heard.text, delta.get("content"))
        for name in _REASONING:
            if _add(heard.reasoning, delta.get(name)):
                said = True
                break  # some send the same under two names
        calls = delta.get("tool_calls")
        for call in cast(list[object], calls) if isinstance(calls, list) else []:
            said |= _add(heard.tool_calls, _call_text(call))
        return said

    def _take_usage(self, raw: object) -> None:
        if not isinstance(raw, dict):
            return
        usage, heard = cast(dict[str, object], raw), self.heard
        heard.prompt_tokens = _number(usage.get("prompt_tokens"), heard.prompt_tokens)
        heard.completion_tokens = _number(usage.get("completion_tokens"), heard.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached = cast(dict[str, object], details).get("cached_tokens")
            heard.cached_tokens = _number(cached, heard.cached_tokens)


def _scores(logprobs: object) -> Iterator[Score]:
    """The scores that a chunk of a chat brings."""
    content = cast(dict[str, object], logprobs).get("content") if isinstance(logprobs, dict) else ()
    for entry in cast(list[object], content) if isinstance(content, list) else []:
        match entry:
            case {"token": str(text), "logprob": float(own) | int(own)}:
                top = cast(dict[str, object], entry).get("top_logprobs")
                others = cast(list[object], top) if isinstance(top, list) else []
                yield Score(text, _margin(text, own, others))
            case _:
                pass


def _margin(text: str, own: float, top: list[object]) -> float | None:
    others: list[float] = []
    for entry in top:
        match entry:
            case {"token": str(other), "logprob": float(value) | int(value)} if other != text:
                others.append(value)
            case _:
                pass
    return own - max(others) if others else None


def error_text(error: object) -> str:
    """What an error of the API says, in one short line."""
    if isinstance(error, dict):
        message = cast(dict[str, object], error).get("message")
        error = message if isinstance(message, str) else json.dumps(error)
    return " ".join(str(error).split())[:300]


def _event(payload: bytes) -> Mapping[str, object]:
    try:
        event: object = json.loads(payload)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        shown = payload[:80].decode(errors="replace")
        raise RequestError(Fault.GARBAGE, f"an event of the stream is no JSON object: {shown!r}")
    return cast(dict[str, object], event)


def _add(parts: list[str], value: object) -> bool:
    """Keep a text that is not empty; whether it was one (mutates)."""
    if not isinstance(value, str) or not value:
        return False
    parts.append(value)
    return True


def _call_text(call: object) -> str:
    """What a piece of a tool call brings: its name, its arguments, or both."""
    function = cast(dict[str, object], call).get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ""
    found = cast(dict[str, object], function)
    parts = (found.get("name"), found.get("arguments"))
    return "".join(part for part in parts if isinstance(part, str))


def _number(value: object, otherwise: int | None) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return cast(int, value) if is_number else otherwise
