"""Completions: what they take and refuse, and what they write."""

import json

import pytest

from omlx.engine.request import FinishReason
from omlx.server.errors import ApiError
from omlx.server.generation import About, Ended, Generation, Usage
from omlx.server.openai.completions import Completions
from omlx.server.parse.said import Score, Text
from omlx.server.spoken import Spoken
from tests.fakes.engine import say
from tests.unit.server import strict


def read(prompt="hi", **fields) -> Generation:
    return Completions().decode(json.dumps({"model": "m", "prompt": prompt, **fields}).encode())


def refusal(prompt="hi", **fields) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(prompt, **fields)
    assert caught.value.status == 400
    return caught.value


def chunks(text):
    """The chunks of a whole stream; the SDK's type wants the reason that only the last has."""
    payloads = [block.removeprefix("data: ") for block in strict.blocks(text) if block[0] != ":"]
    assert payloads[-1] == "[DONE]"
    found = []
    for payload in payloads[:-1]:
        value = json.loads(payload)
        reasons = [choice["finish_reason"] for choice in value["choices"]]
        for choice in value["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        found.append((strict.text_completion(json.dumps(value).encode()), reasons))
    return found


def texts(text):
    """What a stream says in each choice."""
    said: dict[int, str] = {}
    for chunk, _ in chunks(text):
        for choice in chunk.choices:
            said[choice.index] = said.get(choice.index, "") + choice.text
    return said


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [b"ab"]),
        (["ab"], [b"ab"]),
        ([97, 98], [b"ab"]),
        ([[97, 98]], [b"ab"]),
        (["a", "bc"], [b"a", b"bc"]),
        ([[97], [98, 99]], [b"a", b"bc"]),
        (["a", [98, 99]], [b"a", b"bc"]),
    ],
)
def test_forms_of_prompts(server, prompt, expected):
    """Each prompt as it is, without a template, in a choice of its own."""
    server.engine.script = lambda request: say(bytes(request.tokens) + b"!")(request)
    body = strict.text_completion(server.complete(prompt).content)
    assert [choice.text.encode() for choice in body.choices] == [one + b"!" for one in expected]
    assert [choice.index for choice in body.choices] == list(range(len(expected)))
    assert body.usage.prompt_tokens == sum(map(len, expected))
    assert [bytes(request.tokens) for request in server.engine.submitted] == expected
    assert texts(server.complete(prompt, stream=True).text) == {
        index: one.decode() + "!" for index, one in enumerate(expected)
    }


def test_k14_several_answers_to_several_prompts(server):
    """K14: numbered in the order of the prompts, each answer with a seed of its own."""
    body = strict.text_completion(server.complete(["a", "bc"], n=2, best_of=2, seed=7).content)
    assert [choice.index for choice in body.choices] == [0, 1, 2, 3]
    assert body.usage.prompt_tokens == 3
    assert body.usage.completion_tokens == 8
    submitted = [(bytes(r.tokens), r.sampling.seed) for r in server.engine.submitted]
    assert submitted == [(b"a", 7), (b"a", 8), (b"bc", 7), (b"bc", 8)]


def test_k14_echo(server):
    """K14: the prompt in front, also of token ids and in a stream."""
    for fields, expected in (
        ({"prompt": "hi "}, {0: "hi ok"}),
        ({"prompt": [104, 105], "n": 2}, {0: "hiok", 1: "hiok"}),
        ({"prompt": ["a", "b"]}, {0: "aok", 1: "bok"}),
    ):
        body = strict.text_completion(server.complete(**fields, echo=True).content)
        assert {choice.index: choice.text for choice in body.choices} == expected
        assert texts(server.complete(**fields, echo=True, stream=True).text) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 3}, "$.best_of"),
        ({"n": 1, "best_of": 2}, "$.best_of"),
        ({"n": 17}, "$.n"),
        ({"n": 0}, "$.n"),
        ({"suffix": "x"}, "$.suffix"),
        ({"logprobs": 6}, "$.logprobs"),
        ({"logprobs": -1}, "$.logprobs"),
        ({"logprobs": True}, "$.logprobs"),
        ({"logprobs": 1, "echo": True}, "$.logprobs"),
        ({"prompt": []}, "$.prompt"),
        ({"prompt": [1, "a"]}, "$.prompt"),
        ({"prompt": ["a"] * 129}, "$.prompt"),
        ({"max_tokens": 0}, "$.max_tokens"),
    ],
)
def test_what_is_refused(fields, param):
    """K14, K13: never one answer with 200 where another was asked for."""
    assert refusal(fields.pop("prompt", "hi"), **fields).param == param


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [-1], [256], [2**40]])
def test_prompts_that_no_model_can_go_on_from(server, prompt):
    response = server.complete(prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "$.prompt")


def test_k25_how_long_an_answer_may_be(server):
    """K25: the rest of the window, not 16 tokens, where nothing is said."""
    server.engine.script = say("x" * 5000)
    body = strict.text_completion(server.complete("a" * 100).content)
    assert body.choices[0].finish_reason == "length"
    assert body.usage.completion_tokens == 900
    two = strict.text_completion(server.complete(["a", "b" * 400]).content)
    assert [len(choice.text) for choice in two.choices] == [999, 600]
    short = strict.text_completion(server.complete(max_tokens=9, max_completion_tokens=8).content)
    assert short.choices[0].text == "x" * 8


def test_a_prompt_that_is_too_long(server):
    error = server.complete(["a", "x" * 2000]).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_k9_cached_tokens(server):
    """K9: of all prompts, streamed or not."""
    server.engine.script = say("ok", memory=1)
    body = strict.text_completion(server.complete(["ab", "cd"], n=2).content)
    assert body.usage.prompt_tokens_details.cached_tokens == 2
    options = {"include_usage": True}
    stream = chunks(server.complete("ab", stream=True, stream_options=options).text)
    assert stream[-1][0].choices == []
    assert stream[-1][0].usage.prompt_tokens_details.cached_tokens == 1
    assert all(chunk.usage is None for chunk, _ in chunks(server.complete(stream=True).text))


def test_the_end_of_a_stream(server):
    server.engine.script = say("one five six")
    stream = chunks(server.complete(stream=True, stop="five").text)
    assert "".join(choice.text for chunk, _ in stream for choice in chunk.choices) == "one "
    reasons = [reason for _, reasons in stream for reason in reasons]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}


# ---- K13: what is known of tokens

SCORES = (
    Score("é", "é".encode(), -0.25, (Score("é", "é".encode(), -0.25), Score("e", b"e", -2.0))),
    Score("�", b"\xf0\x9f", -0.5, (Score("�", b"\xf0\x9f", -0.5), Score("�", b"\xf0", -1.0))),
    Score("�", b"\x98\x80", -0.125, ()),
    Score("x", b"x", -1.0, ()),
)


def written(logprobs, pieces):
    about = About("1", "m", 1, read(logprobs=logprobs))
    spoken = Spoken()
    for piece in [*pieces, Ended(FinishReason.STOP)]:
        spoken.take(0, piece)
    whole = Completions().reply(about).whole(spoken.answers(), Usage(1))
    writer = Completions().reply(about)
    out = b"".join(writer.said(piece, 0) for piece in pieces)
    out += writer.ended(Ended(FinishReason.STOP), 0) + writer.end(Usage(1))
    return strict.text_completion(whole).choices[0], chunks(out.decode())


def test_k13_scores():
    """K13: an integer, in the API's shape; offsets count characters, streamed or not."""
    pieces = [Text("é", 0, SCORES[:1]), Text("😀x", 1, SCORES[1:])]
    choice, stream = written(2, pieces)
    told = choice.logprobs
    assert told.tokens == ["é", "�", "�", "x"]
    assert told.token_logprobs == [-0.25, -0.5, -0.125, -1.0]
    assert told.text_offset == [0, 1, 1, 2]
    assert told.top_logprobs == [{"é": -0.25, "e": -2.0}, {"�": -0.5}, {}, {}]
    streamed = [chunk.choices[0].logprobs for chunk, _ in stream if chunk.choices[0].logprobs]
    assert [one for part in streamed for one in part.text_offset] == told.text_offset
    assert [one for part in streamed for one in part.top_logprobs] == told.top_logprobs


def test_k13_scores_without_others():
    """K13: 0 is a wish as well; nothing is none."""
    choice, _ = written(0, [Text("é", 0, SCORES[:1])])
    assert (choice.logprobs.tokens, choice.logprobs.top_logprobs) == (["é"], None)
    choice, _ = written(None, [Text("é", 0)])
    assert choice.logprobs is None
