"""Writes an answer as a response of the Responses API, or as the events of one.

Knows nothing about requests, but for what an answer repeats of them. A loop that was ended is
told as a limit: the API has no other word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import orjson

from omlx.engine.request import FinishReason
from omlx.server import sse
from omlx.server.errors import ApiError
from omlx.server.generation import About, Answer, Ended, Progress, ToolCall, Usage
from omlx.server.openai.responses_items import Event, Item, Items, Style
from omlx.server.openai.responses_store import Kept, ResponseStore
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Said

_CODES = {
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
    HTTPStatus.SERVICE_UNAVAILABLE: "server_is_overloaded",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request leaves for its answer; `items` is its whole input as a JSON list.

    `items` is None where nothing is to be kept of it.
    """

    repeated: Mapping[str, object] = field(default_factory=dict[str, object])
    style: Style = field(default_factory=Style)
    items: bytes | None = None


class ResponsesReply:
    """The writer of one request's answer; knows its items so far and numbers the events."""

    def __init__(self, about: About, store: ResponseStore) -> None:
        own = about.generation.own
        assert isinstance(own, Asked), "the dialect leaves it"
        self._about = about
        self._asked = own
        self._store = store
        self._id = response_id(about.request_id)
        self._items = Items(about.request_id, own.style)
        self._number = 0
        self._ended: Ended | None = None

    def head(self) -> bytes:
        """The response, of which nothing is there yet (mutates)."""
        response = self._response("in_progress")
        created = self._event({"type": "response.created", "response": response})
        return created + self._event({"type": "response.in_progress", "response": response})

    def begin(self, usage: Usage) -> bytes:
        """Nothing: usage comes at the end."""
        return b""

    def said(self, part: Said, choice: int) -> bytes:
        """The events of more of the answer (mutates)."""
        return self._events(self._items.said(part))

    def keepalive(self, progress: Progress | None) -> bytes:
        """An event that says nothing new (mutates).

        Not a comment: for Codex only events count as signs of life.
        """
        response = self._response("in_progress")
        return self._event({"type": "response.in_progress", "response": response})

    def ended(self, ended: Ended, choice: int) -> bytes:
        """The end of the last item (mutates)."""
        self._ended = ended
        return self._events(self._items.close(is_cut=_is_cut(ended)))

    def end(self, usage: Usage) -> bytes:
        """The whole response, which is kept from now on (mutates)."""
        response = self._finished(usage)
        return self._event({"type": f"response.{response['status']}", "response": response})

    def error(self, error: ApiError) -> bytes:
        """The error by itself, and as the end of the response (mutates)."""
        code = _code(error)
        told = {"type": "error", "code": code, "message": error.message, "param": error.param}
        response = self._response("failed")
        response["error"] = {"code": code, "message": error.message}
        response["output"] = self._items.output
        out = self._event(told)
        return out + self._event({"type": "response.failed", "response": response})

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of an answer that isn't streamed, which is kept from now on (mutates)."""
        [answer] = answers
        is_cut = _is_cut(answer.ended)
        for part in answer.parts:
            if not isinstance(part, ToolCall):
                self._items.said(part)
                continue
            self._items.said(CallBegan(part.index, part.name))
            self._items.said(CallArguments(part.index, part.arguments))
            if not (is_cut and part is answer.parts[-1] and not _is_json(part.arguments)):
                self._items.said(CallEnded(part.index))
        self._ended = answer.ended
        self._items.close(is_cut=is_cut)
        return orjson.dumps(self._finished(usage))

    def _finished(self, usage: Usage) -> dict[str, object]:
        is_cut = self._ended is not None and _is_cut(self._ended)
        response = self._response("incomplete" if is_cut else "completed")
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["output"] = self._items.output
        response["usage"] = _usage(usage)
        if self._asked.items is not None:
            kept = Kept(self._asked.items, orjson.dumps(response))
            self._store.put(self._about.tenant, self._id, kept)
        return response

    def _response(self, status: str) -> dict[str, object]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._about.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._about.model,
            **self._asked.repeated,
            "output": list[Item](),
            "usage": None,
        }

    def _events(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, event: Mapping[str, object]) -> bytes:
        numbered = {**event, "sequence_number": self._number}
        self._number += 1
        return sse.event(str(event["type"]), orjson.dumps(numbered))


def response_id(request_id: str) -> str:
    """The id of the answer to a request."""
    return f"resp_{request_id}"


def _is_cut(ended: Ended) -> bool:
    return ended.reason in (FinishReason.LENGTH, FinishReason.REPETITION)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _code(error: ApiError) -> str:
    """By which clients know whether to come again, to compact, or to give up."""
    known = error.code or _CODES.get(HTTPStatus(error.status))
    return known or ("server_error" if error.status >= 500 else "invalid_prompt")


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
