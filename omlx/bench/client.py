"""Requests to OpenAI-compatible servers, streamed and timed, one or many at once.

Knows nothing about models or about what is asked; standard library only.

Times are seconds on the monotonic clock. The clock of a request starts when its first byte is
sent: the connection is there by then, and how long that took is told apart.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from socket import SHUT_RDWR, socket
from typing import Literal, cast

from omlx.bench.address import CONNECT_S, connection_to, hint_of, reason_of
from omlx.bench.failure import BenchError, Fault, RequestError
from omlx.bench.stream import Events, Heard, Score, error_text

_PIECE_BYTES = 65_536
_MAX_ERROR_BYTES = 65_536
_PATHS = {"chat": "/chat/completions", "completions": "/completions"}

Message = Mapping[str, object]
Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked: `url` with or without /v1, the model's name there, the key if it has one.

    `extra` are fields for the body of each request, which replace those of the bench.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    name: str = ""
    extra: Body = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; a text or token ids go to /v1/completions, messages to /v1/chat/completions.

    `limit_s` is for the whole answer, `silence_s` for the time in which not one byte comes. Answers
    are greedy; `extra` are further fields of the body.
    """

    prompt: str | Sequence[int] | Sequence[Message]
    max_tokens: int
    limit_s: float = 600.0
    silence_s: float = 300.0
    extra: Body = field(default_factory=dict[str, object])

    @property
    def dialect(self) -> Literal["chat", "completions"]:
        """Which of the two requests it is."""
        is_chat = not isinstance(self.prompt, str) and not isinstance(self.prompt[0], int)
        return "chat" if is_chat else "completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. All times but `sent` are seconds, those not of gaps since `sent`.

    `first_s` is the first event with content (text, reasoning or tool call), `gaps_s` the times
    between such events, `end_s` the end of the answer. An event may bring several tokens:
    `completion_tokens` counts those. Tokens are None where the server doesn't say. `scores` has
    the tokens if the request asked for `logprobs` and `top_logprobs`.
    """

    sent: float
    connect_s: float
    headers_s: float
    first_s: float
    gaps_s: tuple[float, ...]
    end_s: float
    text: str
    reasoning: str
    tool_calls: str
    finish: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    num_keep_alives: int
    num_empty: int
    id: str = ""
    scores: tuple[Score, ...] = ()

    @property
    def num_events(self) -> int:
        """How many events brought content."""
        return len(self.gaps_s) + 1

    @property
    def last_s(self) -> float:
        """The last event with content."""
        return self.first_s + sum(self.gaps_s)

    @property
    def uncached_tokens(self) -> int | None:
        """Tokens of the prompt that were computed; None where the server doesn't say."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first one per second; None if there was only one."""
        tokens = self.completion_tokens or self.num_events
        seconds = self.last_s - self.first_s
        return (tokens - 1) / seconds if tokens > 1 and seconds > 0 else None


def ask(target: Target, request: Ask) -> Answer:
    """Send one request and read its stream to the end; RequestError says what went wrong."""
    return _Exchange(target, request).run()


def ask_all(jobs: Sequence[tuple[Target, Ask]]) -> list[Answer | RequestError]:
    """Send all at once, each on a thread and connection of its own; the outcomes in order.

    They are sent when all are connected. Ctrl-C in the meantime ends them.
    """
    outcomes: list[Answer | RequestError | None] = [None] * len(jobs)
    start = threading.Barrier(max(1, len(jobs)))
    exchanges = [_Exchange(target, request) for target, request in jobs]

    def run(idx: int) -> None:
        try:
            outcomes[idx] = exchanges[idx].run(lambda: _meet(start))
        except RequestError as error:
            start.abort()  # the others need not wait for it
            outcomes[idx] = error

    threads = [threading.Thread(target=run, args=(idx,), daemon=True) for idx in range(len(jobs))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        for exchange in exchanges:
            exchange.close()
        raise
    assert all(outcome is not None for outcome in outcomes), "a thread ended by a bug of ours"
    return cast(list[Answer | RequestError], outcomes)


def answers(outcomes: Sequence[Answer | RequestError]) -> list[Answer]:
    """The answers; the first error is raised if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, RequestError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Answer)]


def body_of(target: Target, request: Ask) -> dict[str, object]:
    """The JSON object that is sent."""
    if not request.prompt:
        raise BenchError("a request needs a prompt")
    name = "messages" if request.dialect == "chat" else "prompt"
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    return {
        "model": target.model,
        name: prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **request.extra,
        **target.extra,
    }


def _meet(start: threading.Barrier) -> None:
    try:
        start.wait(CONNECT_S)
    except threading.BrokenBarrierError:
        return  # one has no connection: the others are sent all the same


class _Exchange:
    """One request and its answer; `run` once."""

    def __init__(self, target: Target, request: Ask) -> None:
        self._target = target
        self._request = request
        self._body = json.dumps(body_of(target, request)).encode()
        self._events = Events()
        self._connection, self._path = connection_to(target.url)
        self._path += _PATHS[request.dialect]
        self._socket: socket | None = None

    @property
    def _who(self) -> str:
        return self._target.name or self._target.url

    def close(self) -> None:
        """End it, from any thread: its reader gets an error."""
        if (sock := self._socket) is not None:
            with suppress(OSError):
                sock.shutdown(SHUT_RDWR)

    def run(self, before_sending: Callable[[], None] = lambda: None) -> Answer:
        """The whole answer; RequestError."""
        began = time.monotonic()
        try:
            self._connection.connect()
            self._socket = self._connection.sock
        except (OSError, ValueError) as error:
            self._connection.close()
            raise RequestError(
                Fault.REFUSED, f"{self._who} does not answer: {reason_of(error)}"
            ) from None
        connect_s = time.monotonic() - began
        before_sending()
        sent = time.monotonic()
        try:
            headers_s, ended = self._exchange(sent)
        except TimeoutError:
            raise self._too_slow(sent) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestError(
                Fault.EARLY,
                f"{self._who} closed the connection before the answer ended: {reason_of(error)}",
                hint="its log may say why",
            ) from None
        finally:
            self._connection.close()
        return self._answer(sent, connect_s, headers_s, ended)

    def _exchange(self, sent: float) -> tuple[float, float]:
        """Send and read all; the time to the headers, and the moment of the end."""
        deadline = sent + self._request.limit_s
        self._patience(deadline)
        self._connection.request("POST", self._path, self._body, self._headers())
        response = self._connection.getresponse()
        headers_s = time.monotonic() - sent
        with response:
            if response.status != 200:
                raise self._refusal(response)
            while not self._events.heard.is_done:
                self._patience(deadline)
                data = response.read1(_PIECE_BYTES)
                now = time.monotonic()
                if not data:
                    break
                self._feed(data, now)
        return headers_s, time.monotonic()

    def _feed(self, data: bytes, now: float) -> None:
        try:
            self._events.feed(data, now)
        except RequestError as error:
            raise RequestError(error.fault, f"{self._who}: {error.message}") from None

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "User-Agent": "omlx-bench",
        }
        if self._target.key is not None:
            headers["Authorization"] = f"Bearer {self._target.key}"
        return headers

    def _patience(self, deadline: float) -> None:
        """Let the next read take what is left of the limits; TimeoutError if nothing is."""
        left = deadline - time.monotonic()
        if left <= 0 or self._socket is None:
            raise TimeoutError
        self._socket.settimeout(min(left, self._request.silence_s))

    def _too_slow(self, sent: float) -> RequestError:
        seconds = time.monotonic() - sent
        heard = self._events.heard
        said = f"{len(heard.times)} events with content and {heard.num_keep_alives} keep-alives"
        if seconds >= self._request.limit_s:
            message = f"{self._who} did not end its answer within {seconds:.1f} s ({said})"
            return RequestError(Fault.LATE, message)
        limit = self._request.silence_s
        message = f"{self._who} sent nothing for {limit:.1f} s ({said} before)"
        return RequestError(Fault.SILENCE, message)

    def _refusal(self, response: http.client.HTTPResponse) -> RequestError:
        body = response.read(_MAX_ERROR_BYTES)
        try:
            raw: object = json.loads(body)
        except (ValueError, RecursionError):
            raw = body.decode(errors="replace")
        if isinstance(raw, dict):
            answer = cast(dict[str, object], raw)
            raw = answer.get("error") or answer.get("detail") or answer
        status = response.status
        said = error_text(raw) or response.reason
        return RequestError(
            Fault.STATUS,
            f"{self._who} answers with {status}: {said}",
            status=status,
            hint=hint_of(status),
        )

    def _answer(self, sent: float, connect_s: float, headers_s: float, ended: float) -> Answer:
        heard = self._events.heard
        if not heard.is_whole:
            raise RequestError(
                Fault.EARLY,
                f"{self._who} ended its stream before the answer was whole "
                f"(after {len(heard.times)} events with content)",
                hint="its log may say why",
            )
        if not heard.times:
            raise RequestError(
                Fault.EMPTY,
                f"{self._who} answered without a token (finish_reason {heard.finish or 'none'})",
            )
        return _answer(heard, sent, connect_s, headers_s, ended)


def _answer(heard: Heard, sent: float, connect_s: float, headers_s: float, ended: float) -> Answer:
    return Answer(
        sent=sent,
        connect_s=connect_s,
        headers_s=headers_s,
        first_s=heard.times[0] - sent,
        gaps_s=tuple(b - a for a, b in pairwise(heard.times)),
        end_s=ended - sent,
        text="".join(heard.text),
        reasoning="".join(heard.reasoning),
        tool_calls="".join(heard.tool_calls),
        finish=heard.finish,
        prompt_tokens=heard.prompt_tokens,
        cached_tokens=heard.cached_tokens,
        completion_tokens=heard.completion_tokens,
        num_keep_alives=heard.num_keep_alives,
        num_empty=heard.num_empty,
        id=heard.id,
        scores=tuple(heard.scores),
    )
