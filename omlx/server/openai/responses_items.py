"""Puts the items of an answer together, and tells each step as an event of the Responses API.

Knows nothing about requests, or about the events around the items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omlx.server.openai.chat_reply import call_id
from omlx.server.openai.responses_custom import InputReader
from omlx.server.openai.responses_input import sealed
from omlx.server.openai.responses_tools import Origin
from omlx.server.parse.said import CallArguments, CallBegan, Reasoning, Said, Score, Text

Event = dict[str, object]
Item = dict[str, object]


@dataclass(frozen=True, slots=True)
class Style:
    """How the client wants items: with scores, thoughts as a summary or sealed or neither."""

    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    has_scores: bool = False
    is_summary: bool = False
    is_sealed: bool = False


class _Open(Protocol):
    """An item that may still get longer."""

    def opened(self) -> list[Event]:
        """The events that tell of it."""
        ...

    def more(self, part: Said) -> list[Event]:
        """The events of more of it (mutates)."""
        ...

    def closed(self, *, is_cut: bool) -> tuple[list[Event], Item | None]:
        """The events of its end, and all of it; None where it is of no use."""
        ...


class Items:
    """The items of one answer; each method gives events without their sequence number."""

    def __init__(self, request_id: str, style: Style) -> None:
        self.output: list[Item] = []
        self._request_id = request_id
        self._style = style
        self._open: _Open | None = None
        self._kind: type[Said] | None = None

    def said(self, part: Said) -> list[Event]:
        """Take a piece of the answer, in an item of its own where none is open (mutates)."""
        match part:
            case Text() | Reasoning():
                events = [] if self._kind is type(part) else self._begin(part)
                return events + self._more(part)
            case CallBegan():
                return self._begin(part)
            case CallArguments():
                return self._more(part)
            case _:
                return self.close(is_cut=False)

    def close(self, *, is_cut: bool) -> list[Event]:
        """End the item that is open, if one is; `is_cut` says that a limit ended it (mutates)."""
        if self._open is None:
            return []
        events, item = self._open.closed(is_cut=is_cut)
        at = len(self.output)
        if item is not None:
            self.output.append(item)
            events.append({"type": "response.output_item.done", "output_index": at, "item": item})
        self._open = self._kind = None
        return events

    def _begin(self, part: Text | Reasoning | CallBegan) -> list[Event]:
        events = self.close(is_cut=False)
        at = len(self.output)
        self._kind = type(part)
        match part:
            case Text():
                self._open = _Message(f"msg_{self._request_id}_{at}", at, self._style)
            case Reasoning():
                self._open = _Thought(f"rs_{self._request_id}_{at}", at, self._style)
            case CallBegan():
                origin = self._style.origins.get(part.name, Origin(part.name))
                prefix = "ctc" if origin.is_custom else "fc"
                item_id = f"{prefix}_{self._request_id}_{at}"
                call: Item = {"call_id": call_id(self._request_id, part.index), "name": origin.name}
                if origin.namespace is not None:
                    call["namespace"] = origin.namespace
                made = _Custom if origin.is_custom else _Function
                self._open = made(item_id, at, call)
        return events + self._open.opened()

    def _more(self, part: Said) -> list[Event]:
        return [] if self._open is None else self._open.more(part)


class _Message:
    """The text of the answer."""

    def __init__(self, item_id: str, at: int, style: Style) -> None:
        self._id, self._at, self._style = item_id, at, style
        self._texts: list[str] = []
        self._scores: list[Score] = []

    def opened(self) -> list[Event]:
        item = self._item([], "in_progress")
        part = {"type": "response.content_part.added", **self._place(), "part": self._part("")}
        return [_added(self._at, item), part]

    def more(self, part: Said) -> list[Event]:
        if not isinstance(part, Text):
            return []
        self._texts.append(part.text)
        self._scores += part.scores
        return [
            {
                "type": "response.output_text.delta",
                **self._place(),
                "delta": part.text,
                "logprobs": self._told(part.scores),
            }
        ]

    def closed(self, *, is_cut: bool) -> tuple[list[Event], Item | None]:
        text = "".join(self._texts)
        part = self._part(text)
        done = {
            "type": "response.output_text.done",
            **self._place(),
            "text": text,
            "logprobs": self._told(self._scores),
        }
        end = {"type": "response.content_part.done", **self._place(), "part": part}
        return [done, end], self._item([part], _status(is_cut=is_cut))

    def _item(self, parts: list[Item], status: str) -> Item:
        message: Item = {"id": self._id, "type": "message", "role": "assistant"}
        return message | {"status": status, "content": parts}

    def _part(self, text: str) -> Item:
        scores = self._scores if self._style.has_scores else ()
        logprobs = [_score(s) | {"top_logprobs": [_score(t) for t in s.top]} for s in scores]
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _told(self, scores: Sequence[Score]) -> list[Item]:
        """Scores as events have them, which leave the bytes out."""
        if not self._style.has_scores:
            return []
        return [_brief(s) | {"top_logprobs": [_brief(t) for t in s.top]} for s in scores]

    def _place(self) -> Event:
        return {"item_id": self._id, "output_index": self._at, "content_index": 0}


class _Thought:
    """What the model thinks, as the content of an item or, if the client asks, as its summary."""

    def __init__(self, item_id: str, at: int, style: Style) -> None:
        self._id, self._at, self._style = item_id, at, style
        self._texts: list[str] = []
        index = "summary_index" if style.is_summary else "content_index"
        self._place: Event = {"item_id": item_id, "output_index": at, index: 0}
        self._part_kind = "summary_text" if style.is_summary else "reasoning_text"
        part = "reasoning_summary_part" if style.is_summary else "content_part"
        text = "reasoning_summary_text" if style.is_summary else "reasoning_text"
        self._part_event, self._text_event = f"response.{part}", f"response.{text}"

    def opened(self) -> list[Event]:
        item = self._item([], "in_progress")
        return [_added(self._at, item), self._part_step("added", "")]

    def more(self, part: Said) -> list[Event]:
        if not isinstance(part, Reasoning):
            return []
        self._texts.append(part.text)
        return [{"type": f"{self._text_event}.delta", **self._place, "delta": part.text}]

    def closed(self, *, is_cut: bool) -> tuple[list[Event], Item | None]:
        text = "".join(self._texts)
        done = {"type": f"{self._text_event}.done", **self._place, "text": text}
        item = self._item([{"type": self._part_kind, "text": text}], _status(is_cut=is_cut))
        if self._style.is_sealed:
            item["encrypted_content"] = sealed(text)
        return [done, self._part_step("done", text)], item

    def _item(self, parts: list[Item], status: str) -> Item:
        item: Item = {"id": self._id, "type": "reasoning", "status": status, "summary": []}
        return item | {"summary" if self._style.is_summary else "content": parts}

    def _part_step(self, step: str, text: str) -> Event:
        part = {"type": self._part_kind, "text": text}
        return {"type": f"{self._part_event}.{step}", **self._place, "part": part}


class _Function:
    """A call of a function."""

    def __init__(self, item_id: str, at: int, call: Item) -> None:
        self._id, self._at, self._call = item_id, at, call
        self._texts: list[str] = []

    def opened(self) -> list[Event]:
        return [_added(self._at, self._item("", "in_progress"))]

    def more(self, part: Said) -> list[Event]:
        if not isinstance(part, CallArguments):
            return []
        self._texts.append(part.text)
        return [self._step("delta", delta=part.text)]

    def closed(self, *, is_cut: bool) -> tuple[list[Event], Item | None]:
        arguments = "".join(self._texts)
        done = self._step("done", arguments=arguments)
        return [done], self._item(arguments, _status(is_cut=is_cut))

    def _item(self, arguments: str, status: str) -> Item:
        call = {"id": self._id, "type": "function_call", "status": status}
        return {**call, **self._call, "arguments": arguments}

    def _step(self, step: str, **more: str) -> Event:
        kind = f"response.function_call_arguments.{step}"
        return {"type": kind, "item_id": self._id, "output_index": self._at, **more}


class _Custom:
    """A call of a custom tool, whose text is one argument of the function that the model knows."""

    def __init__(self, item_id: str, at: int, call: Item) -> None:
        self._id, self._at, self._call = item_id, at, call
        self._reader = InputReader()

    def opened(self) -> list[Event]:
        return [_added(self._at, self._item(""))]

    def more(self, part: Said) -> list[Event]:
        text = self._reader.add(part.text) if isinstance(part, CallArguments) else ""
        return [self._step("delta", delta=text)] if text else []

    def closed(self, *, is_cut: bool) -> tuple[list[Event], Item | None]:
        if is_cut:
            # It has no status by which a client could know that half a text is not to be run.
            return [], None
        rest, text = self._reader.finish()
        events = [self._step("delta", delta=rest)] if rest else []
        return [*events, self._step("done", input=text)], self._item(text)

    def _item(self, text: str) -> Item:
        return {"id": self._id, "type": "custom_tool_call", **self._call, "input": text}

    def _step(self, step: str, **more: str) -> Event:
        kind = f"response.custom_tool_call_input.{step}"
        return {"type": kind, "item_id": self._id, "output_index": self._at, **more}


def _added(at: int, item: Item) -> Event:
    return {"type": "response.output_item.added", "output_index": at, "item": item}


def _status(*, is_cut: bool) -> str:
    return "incomplete" if is_cut else "completed"


def _score(score: Score) -> Item:
    return {**_brief(score), "bytes": list(score.raw)}


def _brief(score: Score) -> Item:
    return {"token": score.token, "logprob": score.logprob}
