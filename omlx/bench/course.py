"""What each side of a comparison goes through in a round, and the samples that this gives.

Knows nothing about how sides are started or compared: every side gets the same prompts.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from omlx.bench.client import Answer, Ask, answers, ask, ask_all
from omlx.bench.conversation import Conversation, Turn
from omlx.bench.failure import BenchError
from omlx.bench.result import Label, Process, Start, Value
from omlx.bench.sides import Side
from omlx.bench.trace import Trace
from omlx.bench.workload import Words

CASES = ("cold", "again", "more", "swapped", "restart", "agent", "streams", "memory")
_WARM_TOKENS, _WARM_REPLY = 48, 4
_QUESTION_TOKENS = 16
_TTFT_REPLY = 4
_TURN_REPLY = 4

Messages = Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, with sizes in tokens.

    The head is what prompts of cold, again, more and restart begin with; with `num_tools` three
    quarters of it are tools, which come in another order in the case swapped. Traces are scaled so
    that none has a prompt of more than `agent_tokens` within its first `agent_turns`. `limit_s` is
    the longest that one request may take.
    """

    cases: tuple[str, ...] = CASES
    head_tokens: int = 1024
    num_tools: int = 0
    streams: tuple[int, ...] = (1, 2, 4, 8)
    stream_tokens: int = 32
    stream_reply: int = 32
    traces: tuple[Trace, ...] = ()
    agent_tokens: int = 1024
    agent_turns: int = 4
    seed: int = 0
    limit_s: float = 300.0

    @property
    def most_tokens(self) -> int:
        """The longest prompt and reply that is asked for, without what templates add."""
        agent = self.agent_tokens if self.traces else 0
        return max(self.head_tokens + _QUESTION_TOKENS, agent, self.stream_tokens) + max(
            _TTFT_REPLY, self.stream_reply
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one side in one round."""

    name: str
    unit: str
    value: float
    label: Label
    case: Mapping[str, Value] = field(default_factory=dict[str, Value])


@dataclass(frozen=True, slots=True)
class Prompts:
    """What a round asks every side: made before anything is timed."""

    warm_up: tuple[str, ...]
    head: str
    tools: tuple[Mapping[str, object], ...]
    questions: tuple[str, ...]
    streams: Mapping[int, tuple[str, ...]]
    agents: tuple[tuple[Turn, ...], ...]

    def about_head(self, number: int) -> Messages:
        """The head as system, with one of the questions."""
        return [
            {"role": "system", "content": self.head},
            {"role": "user", "content": self.questions[number]},
        ]


def make_prompts(plan: Plan, words: Words, round_idx: int) -> Prompts:
    """The prompts of a round, which share nothing with those of other rounds or seeds."""

    def text(num_tokens: int, name: str) -> str:
        return words.text(num_tokens, seed=f"{plan.seed} {round_idx} {name}")

    has_streams = "streams" in plan.cases
    in_tools = plan.head_tokens * 3 // 4 if plan.num_tools else 0
    return Prompts(
        warm_up=tuple(text(_WARM_TOKENS, f"warm {idx}") for idx in range(2)),
        head=text(plan.head_tokens - in_tools, "head"),
        tools=tuple(
            _tool(idx, text(in_tools // plan.num_tools, f"tool {idx}"))
            for idx in range(plan.num_tools)
        ),
        questions=tuple(text(_QUESTION_TOKENS, f"question {idx}") for idx in range(4)),
        streams={
            num: tuple(text(plan.stream_tokens, f"stream {num} {idx}") for idx in range(num))
            for num in (plan.streams if has_streams else ())
        },
        agents=tuple(
            _turns(plan, trace, f"{plan.seed} {round_idx}", words.whole)
            for trace in (plan.traces if "agent" in plan.cases else ())
        ),
    )


def _tool(number: int, description: str) -> Mapping[str, object]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    function = {"name": f"tool_{number}", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _turns(plan: Plan, trace: Trace, seed: str, words: Sequence[str]) -> tuple[Turn, ...]:
    """The first turns of a trace; its own texts stand for replies, so that all sides get one."""
    first = trace.requests[: plan.agent_turns]
    longest = max(request.num_prompt for request in first)
    scale = min(1.0, plan.agent_tokens / longest)
    talk = Conversation(trace, words=words, scale=scale, seed=seed)
    return tuple(talk.next_turn() for _ in first)


@dataclass
class Course:
    """One side's round. `on_step` hears of each case; `failures` keeps what went wrong."""

    side: Side
    plan: Plan
    prompts: Prompts
    on_step: Callable[[str], None] = lambda _: None
    samples: list[Sample] = field(default_factory=list[Sample])
    failures: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def run(self) -> None:
        """Start the side, measure every case, and end it; what fails ends the side's round."""
        what = "start"
        try:
            for what, measure in self._cases():
                self.on_step(what)
                measure()
        except BenchError as error:
            self.failures.append(f"{what}: {error.message}")
        finally:
            self.side.close()

    def _cases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        measures = {
            "cold": self._cold,
            "again": self._again,
            "more": self._more,
            "swapped": self._swapped,
            "restart": self._restart,
            "agent": self._agent,
            "streams": self._streams,
            "memory": self._memory,
        }
        yield "start", self._start
        for case in CASES:
            if case in self.plan.cases and self._has(case):
                yield case, measures[case]

    def _has(self, case: str) -> bool:
        """Whether there is anything to measure."""
        match case:
            case "restart":
                return self.side.can_restart
            case "swapped":
                return bool(self.prompts.tools)
            case "agent":
                return bool(self.prompts.agents)
            case _:
                return True

    def _start(self) -> None:
        ready_s = self.side.start()
        if ready_s is not None:
            self._add("ready", "s", ready_s, Label(Process.COLD, Start.MISS), {"of": "start"})
        self._warm_up(0)

    def _warm_up(self, number: int) -> Answer:
        """Weights in memory, kernels compiled: no other first token waits for that."""
        text = self.prompts.warm_up[number]
        return self._ask([{"role": "user", "content": text}], _WARM_REPLY)

    def _cold(self) -> None:
        answer = self._ttft("cold", 0, Start.MISS)
        if answer.cached_tokens is not None and answer.cached_tokens > self.plan.head_tokens // 4:
            self.notes.append(
                f"{self.side.name} had {answer.cached_tokens} tokens of the cold prompt already"
            )

    def _again(self) -> None:
        self._ttft("again", 0, Start.MEMORY)

    def _more(self) -> None:
        self._ttft("more", 1, Start.MEMORY)

    def _swapped(self) -> None:
        self._ttft("swapped", 2, Start.MEMORY, tools=self.prompts.tools[::-1])

    def _restart(self) -> None:
        self.side.settle()
        ready_s, dropped = self.side.restart()
        label = Label(Process.COLD, Start.MIXED)
        self._add("ready", "s", ready_s, label, {"of": "restart"})
        if not dropped.is_dropped and dropped.num_files:
            self.notes.append(f"{self.side.name}: page cache not dropped: {dropped.reason}")
        first_s = ready_s + self._warm_up(1).first_s
        self._add("started", "s", first_s, Label(Process.COLD, Start.MISS), {"of": "restart"})
        self._ttft("restart", 3, Start.MIXED)

    def _ttft(
        self, case: str, number: int, start: Start, *, tools: Sequence[object] | None = None
    ) -> Answer:
        tools = self.prompts.tools if tools is None else tools
        extra = {"tools": [*tools]} if tools else {}
        answer = self._ask(self.prompts.about_head(number), _TTFT_REPLY, extra)
        label = Label(Process.WARM, start)
        key: dict[str, Value] = {"of": case, "tokens": self.plan.head_tokens}
        self._add("ttft", "s", answer.first_s, label, key)
        if answer.uncached_tokens is not None:
            self._add("uncached", "tokens", answer.uncached_tokens, label, key)
        return answer

    def _agent(self) -> None:
        """The agents take turns, one request at a time: each finds the others' in the cache."""
        label = Label(Process.WARM, Start.MIXED)
        key: dict[str, Value] = {
            "of": "agent", "agents": len(self.prompts.agents), "tokens": self.plan.agent_tokens
        }  # fmt: skip
        ttfts: list[float] = []
        uncached: list[int | None] = []
        for number in range(self.plan.agent_turns):
            for turns in self.prompts.agents:
                if number < len(turns):
                    answer = self._ask(turns[number].messages(), _TURN_REPLY)
                    ttfts.append(answer.first_s)
                    uncached.append(answer.uncached_tokens)
        self._add("ttft", "s", statistics.fmean(ttfts), label, key)
        known = [tokens for tokens in uncached if tokens is not None]
        if len(known) == len(uncached):
            self._add("uncached", "tokens", statistics.fmean(known), label, key)

    def _streams(self) -> None:
        for number, texts in self.prompts.streams.items():
            self.on_step(f"{number} streams" if number > 1 else "1 stream")
            asks = [
                self._request([{"role": "user", "content": text}], self.plan.stream_reply)
                for text in texts
            ]
            target = self.side.target()
            found = answers(ask_all([(target, request) for request in asks]))
            label = Label(Process.WARM, Start.MISS, number)
            key: dict[str, Value] = {"of": "streams", "tokens": self.plan.stream_tokens}
            tokens = sum(one.completion_tokens or one.num_events for one in found)
            began = min(one.sent for one in found)
            ended = max(one.sent + one.last_s for one in found)
            self._add("rate", "tokens/s", tokens / (ended - began), label, key)
            median = statistics.median(one.first_s for one in found)
            self._add("ttft", "s", median, label, key)
            if number == 1:
                per_event = tokens / sum(one.num_events for one in found)
                self._add("tokens per event", "tokens", per_event, label, key)

    def _memory(self) -> None:
        num_bytes = self.side.memory_bytes()
        if num_bytes is not None:
            most = max(self.plan.streams, default=1)
            label = Label(Process.WARM, Start.MIXED, most)
            self._add("memory", "bytes", num_bytes, label, {"of": "memory"})

    def _ask(
        self, messages: Messages, num_reply: int, extra: Mapping[str, object] | None = None
    ) -> Answer:
        return ask(self.side.target(), self._request(messages, num_reply, extra))

    def _request(
        self, messages: Messages, num_reply: int, extra: Mapping[str, object] | None = None
    ) -> Ask:
        limit_s = self.plan.limit_s
        return Ask(messages, num_reply, limit_s=limit_s, silence_s=limit_s, extra=extra or {})

    def _add(
        self, name: str, unit: str, value: float, label: Label, case: Mapping[str, Value]
    ) -> None:
        self.samples.append(Sample(name, unit, float(value), label, case))
