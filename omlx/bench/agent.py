"""Replays traces of coding agents against a server, any number of agents at once.

Knows nothing about terminals. A turn is sent when the one before has its answer and the agent has
thought; what agents say is `omlx.bench.conversation`'s.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from omlx.bench.client import Answer, Ask, Target, ask
from omlx.bench.conversation import Conversation, Turn, most_messages
from omlx.bench.failure import BenchError
from omlx.bench.insight import Course, Insight
from omlx.bench.result import Label, Process, Start
from omlx.bench.step import Steps
from omlx.bench.trace import Trace

_MESSAGE_TOKENS = 8
_SPARE_TOKENS = 64
# A prompt of which less was cached began like others by chance, as with the template's first words.
_LEAST_HIT = 0.05
_WRITTEN_S = 60.0


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed, and how.

    `scale` (0 to 1) is applied to all sizes, `think` to the traces' times between requests, none of
    which is longer than `max_think_s` then. `num_agents` run at once, one trace each, over again
    where there are fewer traces; `num_turns` is how many of each trace at most. With `is_real` a
    prompt goes on with what the server answered, else with text of the trace's size. Answers end
    after `max_tokens`.
    """

    traces: tuple[Trace, ...]
    words: Sequence[str] = field(repr=False)
    scale: float = 1.0
    num_agents: int = 1
    num_turns: int | None = None
    think: float = 0.0
    max_think_s: float = 60.0
    is_real: bool = False
    max_tokens: int = 32
    seed: int = 0
    limit_s: float = 600.0

    def trace_of(self, agent: int) -> Trace:
        """The trace that an agent replays."""
        return self.traces[agent % len(self.traces)]

    @property
    def total_turns(self) -> int:
        """Turns of all agents."""
        return sum(self.turns_of(self.trace_of(agent)) for agent in range(self.num_agents))

    def turns_of(self, trace: Trace) -> int:
        """How many turns of it are replayed."""
        number = len(trace.requests)
        return number if self.num_turns is None else min(number, self.num_turns)


@dataclass(frozen=True, slots=True)
class Sent:
    """One turn that has its answer.

    Tokens as the server counts them; of these `num_new` were in no earlier prompt of the agent's,
    by the trace, the template's own not counted. `cached` is None where the server doesn't say.
    `tiers` tells where hits came from, None likewise.
    """

    agent: int
    trace: str
    turn: int
    label: Label
    num_prompt: int
    num_new: int
    cached: int | None
    tiers: Course | None
    num_reply: int
    ttft_s: float
    total_s: float
    thought_s: float

    @property
    def uncached(self) -> int | None:
        """Tokens of the prompt that were computed."""
        return None if self.cached is None else self.num_prompt - self.cached


@dataclass(frozen=True, slots=True)
class Replayed:
    """All turns in the order in which they ended, and what came of them.

    `bytes_written` is None where the server doesn't say; `is_written` whether nothing was left to
    write when that was asked.
    """

    turns: tuple[Sent, ...]
    seconds: float
    bytes_written: int | None
    is_written: bool | None


def fitting_scale(
    traces: Sequence[Trace], *, window: int | None, max_tokens: int, num_turns: int | None
) -> float:
    """The largest scale, 1 at most, at which all prompts and answers fit a window; BenchError."""
    if window is None:
        raise BenchError(
            "the server doesn't say how many tokens its model's window has",
            hint="--window or --scale",
        )
    scale = 1.0
    for trace in traces:
        requests = trace.requests[:num_turns]
        room = window - max_tokens - _template_tokens(trace, num_turns)
        longest = max(request.num_prompt for request in requests)
        scale = min(scale, room / longest)
    if scale * min(trace.id_tokens for trace in traces) < 0.25:
        raise BenchError(
            f"a window of {window:,} tokens is too small for these traces: nothing would be left "
            "of most of their parts",
            hint="--turns with fewer turns, a model with a larger window, or other traces",
        )
    return round(scale - 5e-5, 4) if scale < 1 else 1.0


def check_fits(replay: Replay, window: int | None) -> None:
    """BenchError if a prompt will not fit the window at the scale that was asked for."""
    if window is None:
        return
    for trace in replay.traces:
        requests = trace.requests[: replay.num_turns]
        longest = max(request.num_prompt for request in requests)
        needed = longest * replay.scale + replay.max_tokens
        needed += _template_tokens(trace, replay.num_turns)
        if needed > window:
            raise BenchError(
                f"{trace.name} needs a window of about {needed:,.0f} tokens at scale "
                f"{replay.scale:g}, and the model's has {window:,}",
                hint="without --scale it is chosen so that all fits",
            )


def _template_tokens(trace: Trace, num_turns: int | None) -> int:
    """What the chat template may add to the longest prompt, roughly."""
    turns = len(trace.requests) if num_turns is None else num_turns
    return _SPARE_TOKENS + _MESSAGE_TOKENS * most_messages(trace, turns)


class Agents:
    """Runs the agents of one replay; use it once."""

    def __init__(
        self,
        target: Target,
        replay: Replay,
        steps: Steps,
        *,
        is_fresh: bool,
        insight: Insight | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_fresh`: the server has answered nothing yet."""
        self._target = target
        self._replay = replay
        self._steps = steps
        self._insight = insight or Insight(target)
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._is_cold = is_fresh
        self._can_go_on = False  # whether the server takes min_tokens
        self._sent: list[Sent] = []
        self._errors: list[BenchError] = []

    def run(self) -> Replayed:
        """All agents to their end; the first error of one ends all, and is raised."""
        before = self._insight.bytes_written()
        self._can_go_on = before is not None
        began = self._clock()
        threads = [
            threading.Thread(target=self._guarded, args=(agent,), daemon=True)
            for agent in range(self._replay.num_agents)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stopped.set()
        seconds = self._clock() - began
        if self._errors:
            raise self._errors[0]
        assert len(self._sent) == self._replay.total_turns, "an agent ended by a bug of ours"
        self._steps.end()
        is_written = self._insight.wait_written(_WRITTEN_S)
        after = self._insight.bytes_written()
        written = None if before is None or after is None else after - before
        return Replayed(tuple(self._sent), seconds, written, is_written)

    def _guarded(self, agent: int) -> None:
        """One agent; its error is kept for `run`, and ends the others."""
        is_whole = False
        try:
            self._talk(agent)
            is_whole = True
        except BenchError as error:
            self._errors.append(error)
        finally:
            if not is_whole:
                self._stopped.set()

    def _talk(self, agent: int) -> None:
        replay = self._replay
        trace = replay.trace_of(agent)
        seed = f"omlx agent {replay.seed} {agent}"
        talk = Conversation(trace, words=replay.words, scale=replay.scale, seed=seed)
        answer: Answer | None = None
        began, last_s = self._clock(), 0.0
        for number in range(replay.turns_of(trace)):
            if answer is not None and replay.is_real:
                turn = talk.next_turn(answer.text, answer.completion_tokens or answer.num_events)
            else:
                turn = talk.next_turn()
            gap_s = min((turn.at_s - last_s) * replay.think, replay.max_think_s)
            thought_s = self._think(began + gap_s) if number else 0.0
            began, last_s = self._clock(), turn.at_s
            if self._stopped.is_set():
                return
            answer = self._turn(agent, trace, number, turn, thought_s)

    def _think(self, until: float) -> float:
        """Wait until then; for how many seconds. It ends early when all is over."""
        seconds = max(0.0, until - self._clock())
        if seconds:
            self._stopped.wait(seconds)
        return seconds

    def _turn(self, agent: int, trace: Trace, number: int, turn: Turn, thought_s: float) -> Answer:
        replay = self._replay
        with self._lock:
            self._steps.begin(f"agent {agent + 1}, turn {number + 1} of {replay.turns_of(trace)}")
            is_cold = self._is_cold
        tokens = min(turn.num_reply, replay.max_tokens)
        extra = {"min_tokens": tokens} if self._can_go_on else {}
        request = Ask(turn.messages(), tokens, limit_s=replay.limit_s, extra=extra)
        answer = ask(self._target, request)
        with self._lock:
            self._is_cold = False
        if answer.prompt_tokens is None:
            raise BenchError(
                f"{self._target.name or self._target.url} sends no usage with its answers",
                hint="a replay counts tokens by it (stream_options.include_usage)",
            )
        course = self._insight.course(answer.id)
        process = Process.COLD if is_cold else Process.WARM
        sent = Sent(
            agent=agent,
            trace=trace.name,
            turn=number,
            label=Label(process, start_of(answer, course), replay.num_agents),
            num_prompt=answer.prompt_tokens,
            num_new=turn.num_new,
            cached=answer.cached_tokens,
            tiers=course,
            num_reply=answer.completion_tokens or answer.num_events,
            ttft_s=answer.first_s,
            total_s=answer.end_s,
            thought_s=thought_s,
        )
        with self._lock:
            self._sent.append(sent)
        return answer


def start_of(answer: Answer, course: Course | None) -> Start:
    """Where the prefix of a prompt came from; a hit of an unknown tier counts as one of memory."""
    cached = answer.cached_tokens or 0
    if cached < _LEAST_HIT * (answer.prompt_tokens or 0) or not cached:
        return Start.MISS
    if course is None or not course.cached_disk:
        return Start.MEMORY
    return Start.MIXED if course.cached_memory else Start.DISK
