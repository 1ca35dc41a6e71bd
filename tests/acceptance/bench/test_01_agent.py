"""Point 1, agents: traces replayed on the demo model compute what is new, also after a restart."""

import json
from pathlib import Path
from typing import Any

from omlx.bench.agent import Agents, Replay, Replayed
from omlx.bench.agentreport import agent_report
from omlx.bench.insight import Insight
from omlx.bench.measured import Model
from omlx.bench.result import report_object
from omlx.bench.servers import Serve, Server, serving
from omlx.bench.spread import percentile
from omlx.bench.step import Steps
from omlx.bench.trace import PACKAGED, find_traces, load_trace
from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import KEPT

_WINDOW = 8192
# The template's words around a turn's new messages, and those of a token that changes at its edge.
_TEMPLATE_TOKENS = 24


def replay_of(demo: Path, **given: Any) -> Replay:
    traces = tuple(load_trace(path) for path in find_traces([PACKAGED]))
    words = Model("demo", demo, _WINDOW).words().whole
    options = {"scale": 0.05, "num_agents": 3, "num_turns": 6, "max_tokens": 8, **given}
    return Replay(traces, words, **options)


def sent(server: Server, model: str, replay: Replay, *, is_fresh: bool) -> Replayed:
    target = server.target(model)
    steps = Steps(replay.total_turns)
    return Agents(target, replay, steps, is_fresh=is_fresh, insight=Insight(target)).run()


def test_agents_compute_what_is_new(demo: Path, figure: Figure) -> None:
    replay = replay_of(demo)
    serve = Serve((demo,), {"cache.min_free": 0, "cache.load": "always"})
    with serving(serve) as server:
        first = sent(server, demo.name, replay, is_fresh=True)
        server.restart()
        again = sent(server, demo.name, replay, is_fresh=True)
    for turn in first.turns:
        assert turn.uncached is not None
        assert turn.num_new <= turn.uncached <= turn.num_new + _TEMPLATE_TOKENS, turn
    assert all(turn.uncached == 1 for turn in again.turns), "all of it was on disk"
    firsts = [turn for turn in again.turns if turn.turn == 0]
    assert len(firsts) == 3
    for turn in firsts:  # later ones find in memory what these have loaded
        assert turn.tiers is not None
        assert turn.tiers.cached_disk == turn.num_prompt - 1
    assert first.bytes_written and first.is_written
    for name, found in (("cold", first), ("after a restart", again)):
        uncached = [turn.uncached or 0 for turn in found.turns]
        ttfts = [turn.ttft_s for turn in found.turns]
        figure(
            f"3 agents, {len(uncached)} turns, {name}: uncached p50 {percentile(uncached, 0.5)}, "
            f"p95 {percentile(uncached, 0.95)}; TTFT p50 {percentile(ttfts, 0.5):.2f} s, p95 "
            f"{percentile(ttfts, 0.95):.2f} s; {(found.bytes_written or 0) / 1e6:.0f} MB written"
        )
    report = agent_report(first, replay, model=demo.name, sides={})
    kept = json.dumps(report_object(report), indent=1, allow_nan=False)
    (KEPT / "agent-replay.json").write_text(kept + "\n")


def test_a_cache_that_is_off_shows(demo: Path, figure: Figure) -> None:
    """The same replay without a cache: every turn computes its whole prompt."""
    replay = replay_of(demo, num_agents=1, num_turns=4)
    with serving(Serve((demo,), {"cache.enabled": False})) as server:
        found = sent(server, demo.name, replay, is_fresh=True)
    assert all(turn.uncached == turn.num_prompt for turn in found.turns)
    assert not found.bytes_written
    uncached = [turn.uncached or 0 for turn in found.turns]
    figure(f"without a cache 4 turns of one agent compute {uncached} tokens")
