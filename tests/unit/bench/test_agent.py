"""Replays of traces: what agents send, what is reported, and what ends a replay."""

import json
import threading
from pathlib import Path

import pytest

from omlx.bench.agent import Agents, Replay, Replayed, check_fits, fitting_scale
from omlx.bench.agentreport import ALL, FIRST, LATER, agent_report
from omlx.bench.failure import BenchError, RequestError
from omlx.bench.result import Process, Report, Start, report_object
from omlx.bench.step import Step, Steps
from omlx.bench.trace import PACKAGED, Trace, TraceRequest, find_traces, load_trace
from tests.fakes.caching import CachingServer, Habits

WORDS = [f"w{number}" for number in range(5000)]
TRACES = Path(__file__).resolve().parents[2] / "data" / "traces"


def growing(name: str = "t", num: int = 4, gap_s: float = 5.0) -> Trace:
    requests = [
        TraceRequest(gap_s * i, 60 + 30 * i, 12, tuple(range(6 + 3 * i))) for i in range(num)
    ]
    return Trace(name, 10, 20, tuple(requests))


def run(server: CachingServer, replay: Replay, *, is_fresh: bool = True) -> Replayed:
    return Agents(server.target, replay, Steps(replay.total_turns), is_fresh=is_fresh).run()


def report(server: CachingServer, replay: Replay, *, is_fresh: bool = True) -> Report:
    replayed = run(server, replay, is_fresh=is_fresh)
    return agent_report(replayed, replay, model="fake", sides={})


def test_every_turn_computes_what_is_new_and_the_templates_words() -> None:
    replay = Replay((growing(),), WORDS)
    with CachingServer() as server:
        found = run(server, replay)
    assert [sent.num_new for sent in found.turns] == [60, 30, 30, 30]
    assert [sent.uncached for sent in found.turns] == [63, 32, 32, 32]
    assert [sent.label.start for sent in found.turns] == [Start.MISS, *[Start.MEMORY] * 3]
    assert [sent.label.process for sent in found.turns] == [Process.COLD, *[Process.WARM] * 3]
    assert found.bytes_written == 10 * sum(sent.uncached or 0 for sent in found.turns)
    assert found.is_written is True
    assert [len(body["messages"]) for body in server.seen.bodies] == [2, 4, 6, 8]
    assert {body["max_tokens"] for body in server.seen.bodies} == {12}


def test_without_a_cache_everything_is_computed() -> None:
    """The figures see a cache that is off."""
    with CachingServer(Habits(is_caching=False)) as server:
        found = report(server, Replay((growing(),), WORDS))
    (rate,) = found.find("hit rate")
    assert rate.samples == (0.0,)
    (uncached,) = found.find("uncached", case={"turns": LATER})
    assert uncached.label.start is Start.MISS
    assert list(uncached.samples) == [row["prompt"] for row in found.rows[1:]]
    assert uncached.samples[0] > 90


def test_hits_from_disk_have_their_own_label() -> None:
    with CachingServer(Habits(from_disk=True)) as server:
        found = report(server, Replay((growing(),), WORDS), is_fresh=False)
    starts = {measure.label.start for measure in found.find("ttft")}
    assert starts == {Start.MISS, Start.DISK, Start.MIXED}
    assert {measure.label.process for measure in found.find("ttft")} == {Process.WARM}
    assert all(row["memory"] == 0 for row in found.rows)


def test_the_report_has_turns_by_label_in_total_and_one_by_one() -> None:
    replay = Replay((growing("a"), growing("b", 3)), WORDS, num_agents=3, num_turns=3)
    with CachingServer() as server:
        found = report(server, replay)
    document = json.loads(json.dumps(report_object(found)))
    assert document["options"]["traces"] == ["a", "b"]
    assert document["options"]["agents"] == 3
    assert len(document["rows"]) == 9
    assert {(row["agent"], row["trace"]) for row in document["rows"]} == {
        (1, "a"),
        (2, "b"),
        (3, "a"),
    }
    whole = found.find("uncached", case={"turns": ALL})
    assert [measure.label.concurrency for measure in whole] == [3]
    assert len(whole[0].samples) == 9
    first = found.find("uncached", case={"turns": FIRST})
    assert sum(len(measure.samples) for measure in first) == 3
    later = found.find("uncached", case={"turns": LATER})
    assert sum(len(measure.samples) for measure in later) == 6
    assert whole[0].spread().p50 <= whole[0].spread().p95
    prompt = sum(row["prompt"] for row in document["rows"])
    cached = prompt - sum(row["uncached"] for row in document["rows"])
    (rate,) = found.find("hit rate")
    assert rate.samples == (cached / prompt,)
    (written,) = found.find("written")
    assert written.samples == (10 * (prompt - cached),)


def test_agents_share_no_text_and_run_at_once() -> None:
    replay = Replay((growing(),), WORDS, num_agents=4)
    with CachingServer(Habits(pause_s=0.1)) as server:
        found = run(server, replay)
    firsts = [sent for sent in found.turns if sent.turn == 0]
    assert all(sent.label.start is Start.MISS for sent in firsts)
    assert server.seen.most_running > 1
    texts = {body["messages"][0]["content"] for body in server.seen.bodies}
    assert len(texts) == 4


def test_the_same_seed_sends_the_same() -> None:
    sent: list[list[str]] = []
    for seed in (3, 3, 4):
        with CachingServer() as server:
            run(server, Replay((growing(),), WORDS, seed=seed))
        sent.append([json.dumps(body) for body in server.seen.bodies])
    assert sent[0] == sent[1] != sent[2]


def test_real_replies_are_what_the_server_said() -> None:
    for is_real in (True, False):
        replay = Replay((growing(),), WORDS, is_real=is_real)
        with CachingServer(Habits(answer_words=4)) as server:
            run(server, replay)
        bodies = server.seen.bodies
        said = bodies[1]["messages"][2]
        assert said["role"] == "assistant"
        assert (len(said["content"].split()) == 4) is is_real
        assert bodies[2]["messages"][2] == said
        assert sum(len(m["content"].split()) for m in bodies[3]["messages"]) == 150


def test_agents_think_between_turns() -> None:
    replay = Replay((growing(num=3),), WORDS, think=0.04, max_think_s=0.15)
    with CachingServer() as server:
        found = run(server, replay)
    assert found.turns[0].thought_s == 0
    assert all(0 < sent.thought_s <= 0.15 for sent in found.turns[1:])
    assert found.seconds >= 0.3
    with CachingServer() as server:
        found = run(server, Replay((growing(num=3),), WORDS))
    assert {sent.thought_s for sent in found.turns} == {0.0}


def test_an_error_ends_all_agents() -> None:
    replay = Replay((growing(num=40),), WORDS, num_agents=3, think=1.0)
    before = threading.active_count()
    with CachingServer(Habits(fails_at=2)) as server:
        with pytest.raises(RequestError, match="500: it broke"):
            run(server, replay)
        assert len(server.seen.bodies) < 10
    assert threading.active_count() <= before + 3


def test_a_server_without_usage() -> None:
    with (
        CachingServer(Habits(has_usage=False)) as server,
        pytest.raises(BenchError, match="sends no usage"),
    ):
        run(server, Replay((growing(),), WORDS))


def test_what_a_server_does_not_say_is_noted() -> None:
    with CachingServer(Habits(has_counts=False, is_omlx=False)) as server:
        found = report(server, Replay((growing(),), WORDS))
    assert not found.find("uncached") and not found.find("hit rate") and not found.find("written")
    assert any("how many tokens of a prompt were cached" in note for note in found.notes)
    with CachingServer(Habits(is_omlx=False)) as server:
        found = report(server, Replay((growing(),), WORDS))
    assert found.find("uncached")
    assert any("they count as memory" in note for note in found.notes)
    assert {row["disk"] for row in found.rows} == {None}


def test_steps_are_told() -> None:
    said: list[Step] = []
    replay = Replay((growing(num=2),), WORDS)
    with CachingServer() as server:
        Agents(server.target, replay, Steps(2, said.append), is_fresh=True).run()
    assert [(step.what, step.done) for step in said] == [
        ("agent 1, turn 1 of 2", 0),
        ("agent 1, turn 2 of 2", 1),
        ("done", 2),
    ]


# ---- sizes


def test_a_scale_that_fits_every_turn() -> None:
    traces = [load_trace(path) for path in find_traces([TRACES])]
    scale = fitting_scale(traces, window=32_768, max_tokens=32, num_turns=None)
    assert 0.2 < scale < 0.36
    check_fits(Replay(tuple(traces), WORDS, scale=scale), 32_768)
    with pytest.raises(BenchError, match=r"agent-\d+ needs a window of about"):
        check_fits(Replay(tuple(traces), WORDS, scale=scale * 1.1), 32_768)
    assert fitting_scale(traces, window=1_000_000, max_tokens=32, num_turns=None) == 1.0
    check_fits(Replay(tuple(traces), WORDS), None)


def test_fewer_turns_allow_a_larger_scale() -> None:
    traces = [load_trace(TRACES / "agent-00.json")]
    scales = [
        fitting_scale(traces, window=8192, max_tokens=8, num_turns=num) for num in (None, 2, 1)
    ]
    assert scales == sorted(scales) and scales[0] < scales[-1]


def test_a_window_that_is_too_small_or_not_known() -> None:
    traces = [load_trace(TRACES / "agent-15.json")]
    with pytest.raises(BenchError, match="is too small for these traces"):
        fitting_scale(traces, window=1024, max_tokens=8, num_turns=None)
    with pytest.raises(BenchError, match="doesn't say how many tokens"):
        fitting_scale(traces, window=None, max_tokens=8, num_turns=None)


def test_the_traces_that_come_with_omlx_are_the_ones_of_the_tests() -> None:
    files = find_traces([PACKAGED])
    assert [path.name for path in files] == ["agent-01.json", "agent-10.json", "agent-22.json"]
    for path in files:
        assert path.read_bytes() == (TRACES / path.name).read_bytes()
        load_trace(path)
    assert "Apache" in (PACKAGED / "NOTICE").read_text()
