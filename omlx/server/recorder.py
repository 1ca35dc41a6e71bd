"""Keeps what is known of requests that are over: the last few here, a row of each in the journal.

Knows nothing about HTTP or engines. Rows are written on a thread of their own.
"""

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from omlx.engine.request import Trail
from omlx.server.session import Caller, Course
from omlx.storage.entry import JournalEntry, MissReason, PartKind
from omlx.storage.journal import Journal
from omlx.storage.tally import DiskTally

_log = logging.getLogger("omlx.server")
_NUM_RECENT = 20
_MAX_WAITING = 1000
_CLOSE_S = 1.0
_MAX_CHARS = 100
_PRODUCT = re.compile(r"[A-Za-z0-9._-]{1,40}")
# What clients and proxies call the session or tenant of a request, the most telling first.
_SESSION_HEADERS = (
    "x-tenant-id",
    "x-claude-code-session-id",
    "x-session-id",
    "session-id",
    "x-session-affinity",
    "x-affinity",
)


class Recorder:
    """Takes requests as they end; `record` and `close` are for the loop's thread."""

    def __init__(
        self,
        journal: Journal | None,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        has_cache: bool,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._wall = wall
        self._has_cache = has_cache
        self._recent: deque[JournalEntry] = deque(maxlen=_NUM_RECENT)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="omlx-journal")
        self._room = threading.Semaphore(_MAX_WAITING)
        self._num_dropped = 0
        self._moved: dict[str, DiskTally] = {}  # what is still to be kept; the thread's own
        self._is_closed = False

    def record(self, course: Course) -> None:
        """Note a request that is over (mutates)."""
        entry = self._entry(course)
        journal = None if self._is_closed else self._journal
        if journal is None or not self._room.acquire(blocking=False):
            self._num_dropped += self._journal is not None
            self._recent.append(entry)
            return
        self._thread.submit(self._keep, journal, entry).add_done_callback(_log_failure)

    def moved(self, moved: Mapping[str, DiskTally]) -> None:
        """Note what engines have written and evicted on disk, by model (mutates)."""
        if self._journal is not None and not self._is_closed:
            keeping = self._thread.submit(self._keep_moved, self._journal, moved)
            keeping.add_done_callback(_log_failure)

    @property
    def num_lost(self) -> int:
        """How many requests the journal lacks since the start; for any thread."""
        return self._num_dropped + (self._journal.num_lost if self._journal else 0)

    def recent(self) -> list[dict[str, object]]:
        """The last requests, the newest first, without any text; for any thread."""
        return [_shown(entry) for entry in reversed(list(self._recent))]

    def close(self) -> None:
        """Let the rows that wait be written, at most for a second, and end the thread."""
        self._is_closed = True
        if self._journal is not None:
            with suppress(TimeoutError):
                self._thread.submit(self._journal.close).result(_CLOSE_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _keep(self, journal: Journal, entry: JournalEntry) -> None:
        try:
            self._recent.append(journal.add(entry))
        finally:
            self._room.release()

    def _keep_moved(self, journal: Journal, moved: Mapping[str, DiskTally]) -> None:
        """Keep it with what could not be kept before."""
        for model, tally in moved.items():
            self._moved[model] = self._moved.get(model, DiskTally()) + tally
        if self._moved and journal.add_disk(self._moved):
            self._moved = {}

    def _entry(self, course: Course) -> JournalEntry:
        now, wall = self._clock(), self._wall()
        trail = course.trail
        return JournalEntry(
            request_id=course.request_id,
            time=wall - (now - course.arrived),
            ended=wall,
            model=course.model_id,
            outcome=course.outcome,
            dialect=course.caller.dialect,
            client=course.caller.client,
            session=course.caller.session,
            prompt_tokens=course.prompt_tokens,
            cached_memory=course.cached_memory,
            cached_disk=course.cached_disk,
            generated=course.generated,
            parts=course.parts,
            miss=miss_reason(course, has_cache=self._has_cache),
            root=trail.root if trail else "",
            block_size=trail.block_size if trail else 0,
            blocks=trail.blocks if trail else (),
            rest=trail.rest if trail else None,
            shared=trail.shared if trail else 0,
            computed=course.usage.cached + course.computed,
            nearest=trail.nearest if trail else None,
            snapshot=course.usage.cached if trail and trail.needs_snapshot else None,
            salt=course.caller.salt,
            spans=course.spans,
            changes=course.changes,
            text=course.prompt,
            key=course.caller.key,
            is_admitted=course.admitted is not None,
        )


def miss_reason(course: Course, *, has_cache: bool) -> MissReason:
    """Why a request was not served from the cache, as far as the look-up tells."""
    if not has_cache:
        return MissReason.DISABLED
    if course.admitted is None:
        return MissReason.NONE  # it never got so far
    trail = course.trail
    if trail is None:
        return MissReason.UNCACHEABLE
    reason = _by_trail(course, trail)
    last = course.prompt_tokens - 1
    num_again = min(trail.shared, last) - course.usage.cached
    if trail.needs_snapshot and reason is not MissReason.COLD and num_again > last - trail.shared:
        return MissReason.SNAPSHOT  # it costs more than what was not stored at all
    return reason


def _by_trail(course: Course, trail: Trail) -> MissReason:
    if trail.shared >= course.prompt_tokens - 1:
        return MissReason.NONE
    if trail.shared <= _first_token(course):
        return MissReason.COLD
    return MissReason.NONE if trail.nearest is None else MissReason.DIVERGED


def _first_token(course: Course) -> int:
    """Where the prompt begins to be more than the template's opening."""
    return course.spans[0].start if course.spans else 0


def caller(
    headers: Mapping[str, str], dialect: str, address: str = "", *, key: str = "", salt: str = ""
) -> Caller:
    """Who sent a request: the family of its client, its session, where headers tell."""
    product = _PRODUCT.match(headers.get("user-agent", ""))
    session = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), "")
    return Caller(dialect, product[0] if product else "", session[:_MAX_CHARS], address, key, salt)


def _shown(entry: JournalEntry) -> dict[str, object]:
    is_diverged = entry.miss in (MissReason.DIVERGED, MissReason.EVICTED)
    return {
        "id": entry.request_id,
        "time": entry.time,
        "model": entry.model,
        "client": entry.client,
        "outcome": entry.outcome,
        "prompt_tokens": entry.prompt_tokens,
        "cached_memory": entry.cached_memory,
        "cached_disk": entry.cached_disk,
        "uncached": entry.uncached,
        "generated": entry.generated,
        "ttft_s": None if entry.parts is None else entry.parts.ttft_s,
        "miss": entry.miss.value,
        "part": _place(entry) if is_diverged else None,
    }


def _place(entry: JournalEntry) -> str:
    """The part in which the first missing token lies; a tool without its name, which is text."""
    for span in entry.spans:
        if span.start <= entry.shared < span.end:
            is_tool = span.part.kind is PartKind.TOOL
            return f"tool {span.part.idx}" if is_tool else str(span.part)
    return "template"


def _log_failure(done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _log.error("a row of the journal was lost", exc_info=error)
