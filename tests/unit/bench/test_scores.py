"""The id and the scores of tokens in a stream, and whether two answers are the same."""

import json
from typing import Any

from omlx.bench.agreement import TIE, difference
from omlx.bench.client import Answer
from omlx.bench.stream import Events, Score


def event(*content: Any, name: str = "chatcmpl-1") -> bytes:
    choice = {"delta": {"content": "x"}, "logprobs": {"content": [*content]}}
    return b"data: " + json.dumps({"id": name, "choices": [choice]}).encode() + b"\n\n"


def entry(token: str, logprob: float, **others: float) -> dict[str, Any]:
    top = [{"token": name, "logprob": value} for name, value in others.items()]
    return {"token": token, "logprob": logprob, "top_logprobs": top}


def heard(*chunks: bytes) -> Events:
    events = Events()
    for chunk in chunks:
        events.feed(chunk, 0.0)
    return events


def test_scores_and_the_first_id() -> None:
    found = heard(
        event(entry("a", -0.5, a=-0.5, b=-2.5), entry("c", -1, d=-0.25)),
        event(entry("e", 0.0), name="chatcmpl-2"),
    ).heard
    assert found.id == "chatcmpl-1"
    assert found.scores == [Score("a", 2.0), Score("c", -0.75), Score("e", None)]


def test_odd_scores_are_passed_over() -> None:
    odd = (None, 3, {"token": 4}, {"token": "a", "logprob": "x", "top_logprobs": []})
    top = {"token": "a", "logprob": -1.0, "top_logprobs": [None, {"token": "b"}]}
    assert heard(event(*odd, top)).heard.scores == [Score("a", None)]
    for logprobs in (None, 3, {"content": None}, {"content": 5}):
        choice = {"delta": {"content": "x"}, "logprobs": logprobs}
        line = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n"
        assert heard(line).heard.scores == []


def answer(*scores: Score, text: str | None = None) -> Answer:
    said = "".join(score.text for score in scores) if text is None else text
    return Answer(
        sent=0.0, connect_s=0.0, headers_s=0.0, first_s=0.0, gaps_s=(), end_s=0.0, text=said,
        reasoning="", tool_calls="", finish="stop", prompt_tokens=1, cached_tokens=0,
        completion_tokens=len(scores), num_keep_alives=0, num_empty=0, scores=scores,
    )  # fmt: skip


def test_answers_that_are_the_same_or_differ_after_a_tie() -> None:
    a, b, c = Score("a", 3.0), Score("b", 3.0), Score("c", TIE / 2)
    assert difference(answer(a, b), answer(a, b)) == ""
    assert difference(answer(a, c), answer(a, b)) == "", "one of them was unsure"
    assert difference(answer(a, b), answer(a, Score("d", None))) != ""
    assert difference(answer(a, Score("b", None)), answer(a, Score("d", None))) == ""
    assert difference(answer(text="a"), answer(text="b")) == "", "nothing is known"


def test_answers_that_differ() -> None:
    a, b = Score("a", 3.0), Score("b", 0.75)
    said = difference(answer(a, a), answer(a, b))
    assert said == "token 1 is 'b', not 'a', which leads by 0.75"
    assert difference(answer(a, a), answer(a)) == "it is 'a', not 'aa'"
