"""The four checks of a prefix cache: a request again, after a restart, with its tools in another
order, and several at once.

Knows nothing about terminals, or about how a server is restarted and how a miss is explained:
both are given to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from omlx.bench.agreement import difference
from omlx.bench.client import Answer, Ask, Target, ask, ask_all
from omlx.bench.failure import BenchError, Fault, RequestError
from omlx.bench.insight import Insight
from omlx.bench.probe import Probe, reordered, shared_probes, tool_probe
from omlx.bench.result import Check, Value
from omlx.bench.spread import percentile
from omlx.bench.step import Steps

SAME = "same request twice"
RESTART = "after a restart"
TOOLS = "tools reordered"
CONCURRENT = "concurrently"
NAMES = (SAME, RESTART, TOOLS, CONCURRENT)

# A prompt's last token is always computed; others may lack the rest of a small block.
FEW_TOKENS = 32
_BLOCK_TOKENS = 256
_OWN_TOKENS = 64
_WRITTEN_S = 60.0
_NO_COUNT = "the server's usage has no cached tokens (prompt_tokens_details.cached_tokens)"

Figures = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Lost:
    """The first token of a prompt that was stored otherwise, the part it lies in, what changed."""

    token_idx: int
    place: str
    change: str = ""


Explain = Callable[[str], Lost | None]
Restart = Callable[[], Target]


def unexplained(_: str) -> Lost | None:
    """Where nobody can look into the store."""
    return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the checks are made: sizes in tokens, `at_once` requests, limits in seconds."""

    seed: str = "0"
    num_tokens: int = 600
    max_tokens: int = 4
    at_once: int = 4
    limit_s: float = 600.0


class Verifier:
    """Checks one server; each check asks what it needs, whatever was asked before.

    `restart` gives the target that answers then; None where nobody may do it. `explain` gets the
    id of a request. One thread.
    """

    def __init__(
        self,
        target: Target,
        wanted: Wanted,
        steps: Steps,
        *,
        restart: Restart | None = None,
        explain: Explain = unexplained,
    ) -> None:
        self._target = target
        self._wanted = wanted
        self._steps = steps
        self._restart = restart
        self._explain = explain
        self._insight = Insight(target)
        self._probe = tool_probe(wanted.num_tokens, seed=wanted.seed)
        self._has_scores: bool | None = None

    def all(self) -> list[Check]:
        """All four, in the order of `NAMES`; RequestError if nobody answers at all."""
        same = self.run(SAME, self.same)
        tools = self.run(TOOLS, self.tools)
        concurrent = self.run(CONCURRENT, self.concurrent)
        return [same, self.run(RESTART, self.restarted), tools, concurrent]

    def run(self, name: str, check: Callable[[], Check]) -> Check:
        """One check; a request that goes wrong makes it fail, unless nobody is there."""
        self._steps.begin(name)
        try:
            return check()
        except RequestError as error:
            if error.fault is Fault.REFUSED and name != RESTART:
                raise
            return Check(name, False, error.message)
        except BenchError as error:
            return Check(name, False, error.message)

    def same(self) -> Check:
        """The same request twice: the second time all but the last token is a hit."""
        first, again = self._ask(self._probe), self._ask(self._probe)
        figures = _figures(again) | {"first_ttft_s": _seconds(first.first_s)}
        figures["first_uncached_tokens"] = first.uncached_tokens
        return self._hit(SAME, "the second time", again, first, figures)

    def restarted(self) -> Check:
        """The same request before and after a restart: it comes from the disk then."""
        if self._restart is None:
            reason = (
                "not checkable: this server is not the bench's to restart (--restart-command does)"
            )
            return Check(RESTART, None, reason)
        before = self._ask(self._probe)
        self._insight.wait_written(_WRITTEN_S)
        up_s = self._insight.uptime_s()
        self._target = self._restart()
        self._insight = Insight(self._target)
        now_s = self._insight.uptime_s()
        if up_s is not None and now_s is not None and now_s >= up_s:
            reason = f"the server was not restarted: it has run for {now_s:,.0f} s"
            return Check(RESTART, False, reason, {"uptime_s": round(now_s, 1)})
        after = self._ask(self._probe)
        figures = _figures(after) | {"first_ttft_s": _seconds(before.first_s)}
        course = self._insight.course(after.id)
        if course is not None:
            figures |= {"memory_tokens": course.cached_memory, "disk_tokens": course.cached_disk}
        found = self._hit(RESTART, "after the restart", after, before, figures)
        if found.is_passed is False and self._insight.setting("cache.load") in ("auto", "never"):
            why = "cache.load lets a server compute what it could load"
            return replace(found, reason=f"{found.reason}; {why}")
        return found

    def tools(self) -> Check:
        """The same request with its tools in another order.

        Where the server gives prompts a stable form, that is a hit; where that is off, the miss
        has to be explained.
        """
        other = replace(self._probe, tools=reordered(self._probe.tools))
        first, again = self._ask(self._probe), self._ask(other)
        bare = self._ask(replace(self._probe, tools=()))
        figures = _figures(again)
        if bare.prompt_tokens is not None and bare.prompt_tokens == first.prompt_tokens:
            reason = "not checkable: the model's chat template prints no tools"
            return Check(TOOLS, None, reason, figures)
        if self._insight.setting("prompt.tool_order") is not False:
            return self._hit(TOOLS, "with its tools in another order", again, None, figures)
        return self._explained(again, figures)

    def concurrent(self) -> Check:
        """Several requests at once that begin alike: what they share is computed once.

        Each has the answer that it has alone.
        """
        wanted = self._wanted
        probes = shared_probes(wanted.at_once, wanted.num_tokens, seed=wanted.seed)
        outcomes = ask_all([(self._target, self._request(probe)) for probe in probes])
        errors = [one for one in outcomes if isinstance(one, RequestError)]
        answers = [one for one in outcomes if isinstance(one, Answer)]
        figures: Figures = {"requests": len(probes), "errors": len(errors)}
        if errors:
            reason = f"{len(errors)} of {len(probes)} requests failed: {errors[0].message}"
            return Check(CONCURRENT, False, reason, figures)
        ttfts = [answer.first_s for answer in answers]
        figures["ttft_p50_s"] = _seconds(percentile(ttfts, 0.5))
        figures["ttft_max_s"] = _seconds(max(ttfts))
        alone = [self._ask(probe) for probe in probes]
        pairs = zip(answers, alone, strict=True)
        changed = [said for a, b in pairs if (said := difference(a, b))]
        if changed:
            reason = f"{len(changed)} of {len(probes)} answers are others than alone: {changed[0]}"
            return Check(CONCURRENT, False, reason, figures)
        return _computed_once(answers, figures)

    def _ask(self, probe: Probe) -> Answer:
        return ask(self._target, self._request(probe))

    def _request(self, probe: Probe) -> Ask:
        extra: dict[str, object] = {"tools": list(probe.tools)} if probe.tools else {}
        if self._has_scores is None:
            self._has_scores = self._insight.is_omlx
        if self._has_scores:  # others may refuse it
            extra |= {"logprobs": True, "top_logprobs": 2, "min_tokens": self._wanted.max_tokens}
        return Ask(probe.messages, self._wanted.max_tokens, self._wanted.limit_s, extra=extra)

    def _hit(
        self, name: str, when: str, answer: Answer, before: Answer | None, figures: Figures
    ) -> Check:
        """Whether a prompt that was known came from the cache, with the answer it had before."""
        uncached = answer.uncached_tokens
        if uncached is None:
            return Check(name, None, f"not checkable: {_NO_COUNT}", figures)
        reason = f"{when} {uncached:,} of {answer.prompt_tokens:,} tokens had to be computed"
        if uncached > FEW_TOKENS:
            lost = self._explain(answer.id) if answer.id else None
            if lost is not None:
                reason += f"; {self._said(lost)}"
            return Check(name, False, reason, figures)
        changed = difference(before, answer) if before is not None else ""
        if changed:
            return Check(
                name, False, f"{reason}, but its answer is another one: {changed}", figures
            )
        return Check(name, True, reason, figures)

    def _explained(self, answer: Answer, figures: Figures) -> Check:
        """Whether a miss that has to be is explained: by a tool that stands elsewhere."""
        uncached = answer.uncached_tokens
        if uncached is None:
            return Check(TOOLS, None, f"not checkable: {_NO_COUNT}", figures)
        if uncached <= FEW_TOKENS:
            reason = "not checkable: this order is stored already; another --seed has other tools"
            return Check(TOOLS, None, reason, figures)
        lost = self._explain(answer.id) or self._seen(answer)
        head = "the stable form of prompts is off: "
        head += f"{uncached:,} of {answer.prompt_tokens:,} tokens had to be computed"
        if lost is None:
            return Check(TOOLS, False, f"{head}, and nothing says why", figures)
        figures |= {
            "lost_block": lost.token_idx // self._block_size,
            "lost_token": lost.token_idx,
            "lost_part": lost.place,
            "change": lost.change,
        }
        cached = answer.cached_tokens or 0
        if not lost.place.startswith("tool") or lost.token_idx < cached:
            return Check(TOOLS, False, f"{head}, but what is lost is not a tool: {lost}", figures)
        return Check(TOOLS, True, f"{head}; {self._said(lost)}", figures)

    def _seen(self, answer: Answer) -> Lost | None:
        """What the server itself says of a miss: the part only."""
        course = self._insight.course(answer.id)
        if course is None or not course.part:
            return None
        return Lost(course.cached_memory + course.cached_disk, course.part)

    def _said(self, lost: Lost) -> str:
        block = lost.token_idx // self._block_size
        changed = f": {lost.change}" if lost.change else ""
        return (
            f"the first lost block is {block}, at token {lost.token_idx:,}, {lost.place}{changed}"
        )

    @property
    def _block_size(self) -> int:
        size = self._insight.setting("cache.block_size")
        return size if isinstance(size, int) and size > 0 else _BLOCK_TOKENS


def _computed_once(answers: Sequence[Answer], figures: Figures) -> Check:
    """Whether the requests together computed what they share once, and the rest of each."""
    counts = [answer.uncached_tokens for answer in answers]
    uncached = [count for count in counts if count is not None]
    sizes = [answer.prompt_tokens or 0 for answer in answers]
    if len(uncached) < len(answers):
        return Check(CONCURRENT, None, f"not checkable: {_NO_COUNT}", figures)
    most = max(sizes) + (len(answers) - 1) * (_BLOCK_TOKENS + _OWN_TOKENS)
    figures |= {"prompt_tokens": sum(sizes), "uncached_tokens": sum(uncached)}
    reason = (
        f"{len(answers)} requests of {sum(sizes):,} tokens computed {sum(uncached):,}, "
        f"each with the answer it has alone"
    )
    if sum(uncached) > most:
        reason += f"; what they share once and the rest of each is {most:,} at most"
        return Check(CONCURRENT, False, reason, figures)
    return Check(CONCURRENT, True, reason, figures)


def both(on: Check, off: Check) -> Check:
    """The check of reordered tools with stable prompts on and off as one."""
    parts = (on.is_passed, off.is_passed)
    passed = False if False in parts else None if None in parts else True
    figures = {**on.figures, **{f"off_{name}": value for name, value in off.figures.items()}}
    return Check(on.name, passed, f"{on.reason}; {off.reason}", figures)


def _figures(answer: Answer) -> Figures:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "uncached_tokens": answer.uncached_tokens,
        "ttft_s": _seconds(answer.first_s),
    }


def _seconds(value: float) -> float:
    return round(value, 4)
