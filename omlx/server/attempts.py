"""The forms in which messages are given to a chat template that may object to some of them.

Knows nothing about templates beyond what one does with a probe. Earlier turns keep their form as
long as possible, since a prompt that changes at its beginning is not found in the cache.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from omlx.errors import ModelError
from omlx.models.messages import texts_of
from omlx.server.canonical import as_note, num_leading
from omlx.server.context import Message

_MARKS = ("omlx-probe-one", "omlx-probe-two", "omlx-probe-three", "omlx-probe-four")

_THOUGHT = "reasoning_content"

Render = Callable[[Sequence[Message]], str]


def attempts(messages: Sequence[Message], render: Render) -> Iterator[Sequence[Message]]:
    """What to give to the template, best first; later ones only where it objects.

    A system message in the middle becomes a marked note of the user's at its place where the
    template objects to it, and where it would print it at another place, or not at all.
    """
    has_calls = any(message.get("tool_calls") for message in messages)
    for form in _forms(messages, render):
        yield form
        if has_calls:
            yield _with_short_ids(form)
    if any(map(_says_both, messages)):
        for form in _forms([_with_one_thought(message) for message in messages], render):
            yield form


def _forms(messages: Sequence[Message], render: Render) -> Iterator[Sequence[Message]]:
    num_head = num_leading(messages)
    is_late = any(message["role"] == "system" for message in messages[num_head:])
    is_kept = not is_late or _keeps_places(render)
    if is_kept:
        yield messages
    if is_late:
        yield _noted(messages, num_head)
    if num_head > 1 or (num_head and is_late):
        yield _noted(messages, 1)
    if num_head or is_late:
        yield _merged(_noted(messages, 1))
        yield _merged(_noted(messages, 0))
    if not is_kept:
        yield messages


def _keeps_places(render: Render) -> bool:
    """Whether a template prints a system message in the middle where it is; True if it objects."""
    roles = ("system", "user", "system", "user")
    probe = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    try:
        shown = render(probe)
    except ModelError:
        return True
    places = [shown.find(mark) for mark in _MARKS]
    return -1 not in places[1:] and places[1:] == sorted(places[1:])


def _noted(messages: Sequence[Message], num_kept: int) -> list[Message]:
    """The messages with notes in the place of system messages, but for the first ones."""
    notes = [
        as_note("\n".join(texts_of(message))) if message["role"] == "system" else message
        for message in messages[num_kept:]
    ]
    return [*messages[:num_kept], *notes]


def _merged(messages: Iterable[Message]) -> list[Message]:
    """Neighbours of one role as one message, for templates that want roles to alternate."""
    made: list[Message] = []
    for message in messages:
        last = made[-1] if made else None
        if last and last["role"] == message["role"] and _is_plain(last) and _is_plain(message):
            made[-1] = {**last, "content": "\n\n".join([*texts_of(last), *texts_of(message)])}
        else:
            made.append(message)
    return made


def _is_plain(message: Message) -> bool:
    return message.keys() <= {"role", "content"}


def _says_both(message: Message) -> bool:
    """Whether a call comes with a thought and with a text, which gpt-oss takes only one of."""
    return bool(message.get("tool_calls") and message.get(_THOUGHT) and any(texts_of(message)))


def _with_one_thought(message: Message) -> Message:
    if not _says_both(message):
        return message
    thought = "\n\n".join([str(message[_THOUGHT]), *texts_of(message)])
    return {**message, _THOUGHT: thought, "content": ""}


def _with_short_ids(messages: Iterable[Message]) -> list[Message]:
    """The same with ids of calls as Mistral's templates want them: nine letters and digits."""
    short: dict[object, str] = {}
    made: list[Message] = []
    for message in messages:
        calls = cast(list[dict[str, object]], message.get("tool_calls") or [])
        if calls:
            named = [
                {**call, "id": short.setdefault(call.get("id"), f"{len(short):09d}")}
                for call in calls
            ]
            message = {**message, "tool_calls": named}
        if message.get("tool_call_id") in short:
            message = {**message, "tool_call_id": short[message["tool_call_id"]]}
        made.append(message)
    return made
