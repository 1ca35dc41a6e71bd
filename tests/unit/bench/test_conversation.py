"""Conversations grow, fork and shrink exactly as the traces that they are made of."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omlx.bench.conversation import Conversation, Turn, most_messages
from omlx.bench.trace import Trace, TraceRequest, load_trace
from omlx.bench.workload import Words

TRACES = Path(__file__).resolve().parents[2] / "data" / "traces"
# So many that two runs of words are hardly ever the same by chance.
WORDS = [f"w{number}" for number in range(100_000)]


def turns_of(trace: Trace, scale: float = 1.0, seed: str = "s") -> list[Turn]:
    talk = Conversation(trace, words=WORDS, scale=scale, seed=seed)
    return [talk.next_turn() for _ in trace.requests]


def words_of(turn: Turn) -> list[str]:
    return [word for one in turn.said for word in one.text.split(" ")]


def common(a: list[str], b: list[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b)))  # noqa: B905


def check(trace: Trace, scale: float) -> None:
    """Sizes are the trace's, and what is said to be known is known, and not more."""
    before: list[list[str]] = []
    for request, turn in zip(trace.requests, turns_of(trace, scale), strict=True):
        words = words_of(turn)
        assert len(words) == turn.num_prompt == max(2, int(request.num_prompt * scale + 1e-9))
        assert sum(one.num_tokens for one in turn.said) == turn.num_prompt
        known = max((common(words, earlier) for earlier in before), default=0)
        assert turn.num_prompt - turn.num_new == min(known, turn.num_prompt - 1)
        assert turn.said[-1].role == "user"
        assert all(a.role != b.role for a, b in itertools.pairwise(turn.said))
        assert all(one.text for one in turn.said)
        assert len(turn.said) <= most_messages(trace, len(before) + 1)
        before.append(words)


@pytest.mark.parametrize("name", ["agent-00", "agent-01", "agent-10", "agent-22"])
@pytest.mark.parametrize("scale", [1.0, 0.13, 0.02])
def test_real_traces(name: str, scale: float) -> None:
    check(load_trace(TRACES / f"{name}.json"), scale)


def test_what_a_trace_shares_is_that_of_its_ids() -> None:
    """Against the ids themselves, without the code under test."""
    trace = load_trace(TRACES / "agent-13.json")
    turns = turns_of(trace)
    shared = [turn.num_prompt - turn.num_new for turn in turns]
    for idx, request in enumerate(trace.requests[1:], 1):
        ids = max(
            sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(request.ids, o.ids)))  # noqa: B905
            for o in trace.requests[:idx]
        )
        assert 0 <= shared[idx] - 64 * ids < 64


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts that go on, fork, shrink and begin anew."""
    size = draw(st.integers(1, 9))
    rng = random.Random(draw(st.integers(0, 10**6)))
    fresh = itertools.count(1)
    requests: list[TraceRequest] = []
    for idx in range(draw(st.integers(1, 8))):
        old = list(rng.choice(requests).ids) if requests else []
        kept = old[: rng.randint(0, len(old))] if rng.random() < 0.4 else old
        ids = [*kept, *(next(fresh) for _ in range(rng.randint(0, 4)))]
        rest = rng.randint(0, size - 1)
        total = max(1, size * len(ids) + rest)
        requests.append(TraceRequest(float(idx), total, rng.randint(0, 12), tuple(ids)))
    return Trace("t", size, draw(st.integers(0, 30)), tuple(requests))


@given(trace=traces(), scale=st.sampled_from([1.0, 0.7, 0.34]))
@example(
    trace=Trace(
        "t",
        1,
        0,
        (
            TraceRequest(0.0, 1, 4, ()),
            TraceRequest(1.0, 3, 5, (1, 2, 3)),
            TraceRequest(2.0, 1, 3, ()),
            TraceRequest(3.0, 2, 10, (1, 2)),
        ),
    ),
    scale=0.7,
)
def test_any_trace(trace: Trace, scale: float) -> None:
    check(trace, scale)


def test_the_same_seed_says_the_same() -> None:
    trace = load_trace(TRACES / "agent-22.json")
    a, b, other = (turns_of(trace, 0.1, seed) for seed in ("s", "s", "t"))
    assert [turn.said for turn in a] == [turn.said for turn in b]
    assert common(words_of(a[-1]), words_of(other[-1])) == 0


def test_roles_are_those_of_an_agent() -> None:
    requests = (
        TraceRequest(0.0, 100, 20, tuple(range(10))),
        TraceRequest(1.0, 160, 20, tuple(range(16))),
    )
    first, second = turns_of(Trace("t", 10, 60, requests))
    assert [(one.role, one.num_tokens) for one in first.said] == [("system", 60), ("user", 40)]
    assert [(one.role, one.num_tokens) for one in second.said[2:]] == [
        ("assistant", 20),
        ("user", 40),
    ]
    assert second.said[:2] == first.said
    assert second.messages()[0] == {"role": "system", "content": first.said[0].text}


def growing() -> Trace:
    requests = [TraceRequest(float(i), 40 + 30 * i, 12, tuple(range(4 + 3 * i))) for i in range(4)]
    return Trace("t", 10, 20, tuple(requests))


def test_real_replies_take_the_place_of_the_traces() -> None:
    talk = Conversation(growing(), words=WORDS, scale=1.0, seed="s")
    first = talk.next_turn()
    second = talk.next_turn("hello there, you", 5)
    assert second.said[:2] == first.said
    assert (second.said[2].role, second.said[2].text) == ("assistant", "hello there, you")
    assert (second.num_prompt, second.num_new) == (70, 30)
    assert second.said[3].num_tokens == 25
    third = talk.next_turn("and more", 2)
    assert third.said[:4] == second.said
    assert third.said[4].text == "and more"
    plain = talk.next_turn()
    assert plain.said[:6] == third.said
    assert plain.said[6].num_tokens == 12, "without a real one it is the trace's"


def test_a_reply_that_is_too_long_is_not_used() -> None:
    talk = Conversation(growing(), words=WORDS, scale=1.0, seed="s")
    talk.next_turn()
    turn = talk.next_turn("a long story", 30)
    assert turn.said[2].text != "a long story"
    assert turn.num_prompt == 70


def test_a_reply_is_never_cut() -> None:
    """Where history changes within it, it is left out whole."""
    requests = (
        TraceRequest(0.0, 40, 12, tuple(range(4))),
        TraceRequest(1.0, 70, 12, tuple(range(7))),
        TraceRequest(2.0, 80, 12, (0, 1, 90, 91, 92, 93, 94, 95)),
        TraceRequest(3.0, 60, 12, (0, 1, 2, 3, 4, 96)),
    )
    talk = Conversation(Trace("t", 10, 20, requests), words=WORDS, scale=1.0, seed="s")
    talk.next_turn()
    talk.next_turn("a b c", 12)
    fork = talk.next_turn("not of this branch", 4)
    assert "not of this branch" not in [one.text for one in fork.said]
    last = talk.next_turn()
    assert "a b c" not in [one.text for one in last.said]
    assert (last.num_prompt, last.num_new) == (60, 20)


def test_words_that_are_one_token_each() -> None:
    whole = Words(lambda text: len(text.split())).whole
    assert len(set(whole)) == len(whole) > 100
    uneven = Words(lambda text: sum(1 + (len(word) > 2) for word in text.split())).whole
    assert uneven and all(len(word) <= 2 for word in uneven)
    assert Words(lambda text: 2 * len(text.split())).whole, "better two tokens than no text"
