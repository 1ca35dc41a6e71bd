"""What a replay of agents came to, as a report: by label, in total, and turn by turn.

Knows nothing about how turns are sent.
"""

from collections.abc import Mapping, Sequence

from omlx.bench.agent import Replay, Replayed, Sent
from omlx.bench.machine import describe
from omlx.bench.measured import Samples
from omlx.bench.result import Case, Label, Process, Report, Start
from omlx.bench.spread import spread

FIRST, LATER, ALL = "first", "later", "all"


def agent_report(
    replayed: Replayed,
    replay: Replay,
    *,
    model: str,
    sides: Mapping[str, Mapping[str, object]],
    notes: Sequence[str] = (),
) -> Report:
    """The report of one replay.

    `uncached` are tokens computed and `new` those that had to be, a sample for each turn; `ttft` is
    seconds. The case says whether turns are the first of an agent or later ones; `all` of them
    have a label that is mixed.
    """
    samples = Samples()
    for sent in replayed.turns:
        _add_turn(samples, sent, sent.label, FIRST if sent.turn == 0 else LATER)
    whole = Label(Process.WARM, Start.MIXED, replay.num_agents)
    for sent in replayed.turns:
        _add_turn(samples, sent, whole, ALL)
    _add_totals(samples, replayed, whole)
    found = _notes(replayed, replay)
    return Report(
        kind="agent",
        seed=replay.seed,
        model=model,
        machine=describe(),
        options=_options(replay),
        sides=sides,
        measures=samples.measures(),
        rows=tuple(_row(sent) for sent in replayed.turns),
        notes=(_headline(replayed), *notes, *found),
    )


def _headline(replayed: Replayed) -> str:
    """The figures that matter most, in one line; p50 and p95 are over all turns."""
    turns = replayed.turns
    ttft = spread([sent.ttft_s for sent in turns])
    said = f"TTFT p50 {ttft.p50:.2f} s, p95 {ttft.p95:.2f} s"
    uncached = [sent.uncached for sent in turns if sent.uncached is not None]
    if len(uncached) == len(turns):
        each, new = spread(uncached), spread([sent.num_new for sent in turns])
        share = 1 - sum(uncached) / sum(sent.num_prompt for sent in turns)
        said = (
            f"uncached tokens a turn p50 {each.p50:,.0f}, p95 {each.p95:,.0f} (new by the trace: "
            f"{new.p50:,.0f}, {new.p95:,.0f}); hit rate {share:.1%}; {said}"
        )
    return f"{len(turns)} turns: {said}"


def _add_turn(samples: Samples, sent: Sent, label: Label, turns: str) -> None:
    case = {"turns": turns}
    if sent.uncached is not None:
        samples.add("uncached", "tokens", sent.uncached, label, case)
    samples.add("new", "tokens", sent.num_new, label, case)
    samples.add("ttft", "s", sent.ttft_s, label, case)


def _add_totals(samples: Samples, replayed: Replayed, whole: Label) -> None:
    turns = replayed.turns
    prompt = sum(sent.num_prompt for sent in turns)
    cached = [sent.cached for sent in turns if sent.cached is not None]
    if len(cached) == len(turns) and prompt:
        samples.add("hit rate", "share", sum(cached) / prompt, whole, {"turns": ALL})
    if replayed.bytes_written is not None:
        samples.add("written", "bytes", replayed.bytes_written, whole, {"turns": ALL})
    samples.add("course", "s", replayed.seconds, whole, {"turns": ALL})


def _row(sent: Sent) -> Case:
    tiers = sent.tiers
    return {
        "agent": sent.agent + 1,
        "turn": sent.turn + 1,
        "prefix": sent.label.start.value,
        "prompt": sent.num_prompt,
        "new": sent.num_new,
        "uncached": sent.uncached,
        "memory": None if tiers is None else tiers.cached_memory,
        "disk": None if tiers is None else tiers.cached_disk,
        "ttft_s": round(sent.ttft_s, 4),
        "end_s": round(sent.total_s, 4),
        "thought_s": round(sent.thought_s, 3),
        "reply": sent.num_reply,
        "trace": sent.trace,
        "process": sent.label.process.value,
    }


def _options(replay: Replay) -> dict[str, object]:
    return {
        "traces": [trace.name for trace in replay.traces],
        "agents": replay.num_agents,
        "turns": replay.num_turns,
        "scale": replay.scale,
        "think": replay.think,
        "max_think_s": replay.max_think_s,
        "replies": "server" if replay.is_real else "trace",
        "max_tokens": replay.max_tokens,
    }


def _notes(replayed: Replayed, replay: Replay) -> list[str]:
    """What has to be known to read the figures."""
    whose = (
        "replies in later prompts are the server's own, as an agent sends them"
        if replay.is_real
        else "replies in later prompts are text of the trace's size, the same for every server: "
        "they count as new, since no server has generated them"
    )
    notes = [f"sizes are {replay.scale:g} of the traces'; {whose}"]
    turns = replayed.turns
    if any(sent.cached is None for sent in turns):
        notes.append("the server does not say how many tokens of a prompt were cached")
    elif any(sent.tiers is None for sent in turns):
        notes.append("the server does not say which tier hits came from: they count as memory")
    if replayed.bytes_written is None:
        notes.append("the server does not say how many bytes it wrote")
    elif replayed.is_written is False:
        notes.append("blocks were still to be written when bytes were counted")
    return notes
