"""Remembers which tokens replies were made of, and finds these replies again in later prompts.

Knows nothing about HTTP or engines. A reply that comes back is not tokenized again: that may give
other tokens than the model wrote, and nothing after them would be found in the cache.
"""

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from omlx.cache.policy import StorePolicy
from omlx.models.messages import Message
from omlx.models.segments import Splice
from omlx.models.spans import CharSpan
from omlx.server.alignment import Aligner, Known, Tokenizer, known
from omlx.server.generation import ToolCall
from omlx.server.parse.said import Reasoning, Text
from omlx.server.replykey import core_of, key_of_message, key_of_reply
from omlx.storage.entry import PartKind
from omlx.storage.replies import Replies, Reply

_MAX_TOKENS = 2_000_000  # in memory, at 13 bytes or so each
_EACH = 32  # ways to have said the same
_MAX_WAITING = 1000
_CLOSE_S = 1.0
_PLACE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Said:
    """A reply: the text of the prompt that it answers, its tokens, and what was heard of it.

    One that has not ended was given up, or cut by a limit.
    """

    prompt: str
    tokens: Sequence[int]
    parts: Sequence[Text | Reasoning | ToolCall]
    is_ended: bool = True


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt with its messages, and what of it each has become; `places` are those of the
    messages in the spans."""

    prompt: str
    messages: Sequence[Message]
    places: Sequence[int]
    spans: Sequence[CharSpan]


class Ledger:
    """The replies that `replies` keeps, the newest in memory as well; for one thread, but `close`.

    `replies` is None where nothing is to outlive this process.
    """

    def __init__(self, replies: Replies | None, *, max_tokens: int = _MAX_TOKENS) -> None:
        self._replies = replies
        self._max_tokens = max_tokens
        self._num_tokens = 0
        # The ways in which each reply has been said, the newest first.
        self._known: OrderedDict[bytes, list[Known]] = OrderedDict()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="omlx-ledger")
        self._room = threading.Semaphore(_MAX_WAITING)
        self._closing = threading.Lock()
        self._is_closed = False

    def splices(self, text: Tokenizer, rendered: Rendered, *, salt: str = "") -> list[Splice]:
        """The stretches of a prompt that are replies whose tokens are known, in order (mutates)."""
        if not text.identity or not _is_unicode(rendered.prompt):
            return []
        found = [
            (key, message, span)
            for message, span in _assistants(rendered)
            if (key := key_of_message(text.identity, salt, message)) is not None
        ]
        self._load(text, [key for key, _, _ in found])
        aligner, digest = Aligner(text), _Digest(rendered.prompt)
        made: list[Splice] = []
        for key, message, span in found:
            core = core_of(message)
            find = partial(aligner.find, rendered.prompt, core, span.start)
            splice = _best(self._known.get(key, ()), find, digest)
            if splice is not None and splice.start >= (made[-1].end if made else 0):
                made.append(splice)
        return made

    def record(
        self,
        text: Tokenizer,
        said: Said,
        *,
        salt: str = "",
        store: StorePolicy = StorePolicy.ALL,
    ) -> None:
        """Keep the tokens of a reply where its blocks may be: all, in memory, or off (mutates)."""
        key = key_of_reply(text.identity, salt, said.parts) if text.identity else None
        if key is None or not said.tokens or store is StorePolicy.OFF:
            return
        place = _Digest(said.prompt).of(len(said.prompt))
        reply = Reply(place, array("I", said.tokens))
        self._load(text, [key])
        self._remember(text, key, [reply], is_newest=True)
        if self._replies is not None and store is StorePolicy.ALL:
            with self._closing:
                if not self._is_closed and self._room.acquire(blocking=False):
                    self._writer.submit(self._write, self._replies, key, reply)

    def close(self) -> None:
        """Let the replies that wait be written, at most for a second, and end the thread."""
        with self._closing:
            self._is_closed = True
        if self._replies is not None:
            with suppress(TimeoutError):
                self._writer.submit(self._replies.close).result(_CLOSE_S)
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _write(self, replies: Replies, key: bytes, reply: Reply) -> None:
        try:
            replies.put(key, reply)
        finally:
            self._room.release()

    def _load(self, text: Tokenizer, keys: Sequence[bytes]) -> None:
        """Have in memory what is kept of these keys, and as the last to go."""
        missing = {key for key in keys if key not in self._known}
        for key in dict.fromkeys(keys).keys() - missing:
            self._known.move_to_end(key)
        if missing and self._replies is not None:
            for key, replies in self._replies.get(list(missing)).items():
                self._remember(text, key, replies, is_newest=False)

    def _remember(
        self, text: Tokenizer, key: bytes, replies: Sequence[Reply], *, is_newest: bool
    ) -> None:
        new = [made for reply in replies if (made := known(text, reply.place, reply.ids))]
        places = {way.place for way in new}
        old = self._known.pop(key, [])
        kept = [way for way in old if way.place not in places]
        ways = [*new, *kept] if is_newest else [*kept, *new]
        self._num_tokens += _num_tokens(ways[:_EACH]) - _num_tokens(old)
        self._known[key] = ways[:_EACH]
        while self._num_tokens > self._max_tokens:
            _, gone = self._known.popitem(last=False)
            self._num_tokens -= _num_tokens(gone)


class _Digest:
    """Digests of beginnings of a prompt, in order of their length."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._at = 0
        self._hash = hashlib.sha256()

    def of(self, end: int) -> bytes:
        """The place of a reply that begins there (mutates)."""
        if end < self._at:
            self._at, self._hash = 0, hashlib.sha256()
        self._hash.update(_utf8(self._prompt[self._at : end]))
        self._at = end
        return self._hash.digest()[:_PLACE_BYTES]


def _best(
    ways: Sequence[Known], find: Callable[[Known], Splice | None], digest: _Digest
) -> Splice | None:
    """Of the ways in which a reply has been said, that which was said here, else the newest."""
    begun: Splice | None = None
    for way in ways:
        splice = find(way)
        if splice is None:
            continue
        place = digest.of(splice.start) if len(ways) > 1 else way.place
        here = next((other for other in ways if other.place == place), way)
        own = splice if here is way else find(here)
        if own is not None and here is not way:
            return own
        if len(splice.segment.ids) == len(way.segment.ids):
            return splice
        begun = begun or splice
    return begun


def _assistants(rendered: Rendered) -> Iterator[tuple[Message, CharSpan]]:
    """The assistant's messages that are in the prompt, with where they are, in its order."""
    by_place: dict[int, Message | None] = {}
    for message, place in zip(rendered.messages, rendered.places, strict=True):
        if message.get("role") == "assistant":
            by_place[place] = None if place in by_place else message
    for span in rendered.spans:
        message = by_place.get(span.part.idx)
        is_said = span.part.kind is PartKind.MESSAGE and span.part.name == "assistant"
        if is_said and span.is_marked and message is not None:
            yield message, span


def _num_tokens(ways: Sequence[Known]) -> int:
    return sum(len(way.segment.ids) + 64 for way in ways)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
