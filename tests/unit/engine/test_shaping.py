"""Constrained rows beside free ones, log-probabilities, biases and least lengths, in an engine."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine import constrain
from omlx.engine.frames import events_frame, events_from, request_frame, request_from
from omlx.engine.request import (
    EngineRequest,
    Event,
    FailureCode,
    Finished,
    FinishReason,
    Grammar,
    SamplingParams,
    Token,
)
from omlx.engine.shaping import Noter, Shape, shaped
from tests.fakes import tiny
from tests.fakes.harness import Harness
from tests.fakes.model_folder import write_model_folder

EOS = 256
PROMPT = list(range(40, 90))
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a", "bc"]}, "on": {"type": "boolean"}},
    "required": ["kind", "on"],
    "additionalProperties": False,
}


def make(tmp_path: Path, kind: str = "llama") -> Harness:
    folder = write_model_folder(tmp_path)
    return Harness(tiny.build(kind), tmp_path / "cache", model_path=str(folder), max_active=8)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Harness]:
    harness = make(tmp_path)
    yield harness
    assert harness.stop() == 0


def grammar_params(grammar: Grammar, seed: int = 1, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, grammar=grammar, **fields)


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode()


def is_answer(tokens: list[int]) -> bool:
    value = json.loads(text_of(tokens))
    return set(value) == {"kind", "on"} and value["kind"] in ("a", "bc")


def test_case_k10_answers_are_valid_beside_free_rows_that_do_not_notice(engine: Harness) -> None:
    free = [SamplingParams(), SamplingParams(temperature=1.0, seed=42)]
    alone = [engine.submit(PROMPT, 40, sampling=p) for p in free]
    before = engine.collect(*alone)
    grammar = constrain.json_schema(SCHEMA)
    kept = [engine.submit(PROMPT, 90, sampling=grammar_params(grammar, n)) for n in range(3)]
    beside = [engine.submit(PROMPT, 40, sampling=p) for p in free]
    after = engine.collect(*kept, *beside)
    for one, two in zip(alone, beside, strict=True):
        assert before[one].tokens == after[two].tokens
    for request_id in kept:
        assert after[request_id].reason is FinishReason.STOP
        assert is_answer(after[request_id].tokens)


def test_case_k10_a_model_that_can_not_batch_keeps_to_a_grammar_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.engine.build.why_not_merged", lambda caches: "not merged")
    harness = make(tmp_path)
    params = grammar_params(constrain.json_schema(SCHEMA), logprobs=2)
    answer = harness.ask(PROMPT, 90, sampling=params)
    assert harness.stop() == 0
    assert answer.reason is FinishReason.STOP and is_answer(answer.tokens)


@pytest.mark.parametrize("num_emitted", [1, 5, 12])
def test_an_answer_goes_on_after_a_crash(engine: Harness, num_emitted: int) -> None:
    params = grammar_params(constrain.json_schema(SCHEMA), 7)
    whole = engine.ask(PROMPT, 90, sampling=params).tokens
    rest = engine.ask(PROMPT, 90, sampling=params, emitted=tuple(whole[:num_emitted]))
    assert whole[:num_emitted] + rest.tokens == whole


def test_case_k10_thinking_is_free_and_what_follows_is_not(engine: Harness) -> None:
    grammar = constrain.choice(["yes", "no"], after="!")
    bias = ((ord("!"), 5.0),)
    answer = engine.ask(PROMPT, 400, sampling=grammar_params(grammar, logit_bias=bias))
    assert answer.reason is FinishReason.STOP
    thought, _, said = "".join(map(chr, answer.tokens)).partition("!")
    assert said in ("yes", "no")


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(logit_bias=((tiny.NUM_VOCAB, 1.0),)),
        SamplingParams(logit_bias=((-1, 1.0),)),
        SamplingParams(logit_bias=((1, 101.0),)),
        SamplingParams(logit_bias=((1, math.nan),)),
        SamplingParams(logprobs=-1),
        SamplingParams(min_tokens=-1),
        SamplingParams(grammar=Grammar("nonsense")),
        SamplingParams(grammar=constrain.json_schema({"type": "bogus"})),
    ],
)
def test_what_can_not_be_is_a_bad_request(engine: Harness, params: SamplingParams) -> None:
    failed = engine.ask(PROMPT, sampling=params).failed
    assert failed is not None and failed.code is FailureCode.BAD_REQUEST and failed.message


def test_a_bias_bans_and_forces(engine: Harness) -> None:
    first = engine.ask(PROMPT, 1).tokens[0]
    banned = engine.ask(PROMPT, 1, sampling=SamplingParams(logit_bias=((first, -100.0),)))
    assert banned.tokens != [first]
    forced = engine.ask(PROMPT, 3, sampling=SamplingParams(logit_bias=((77, 100.0),)))
    assert forced.tokens == [77] * 3


def test_no_stop_token_comes_before_min_tokens(engine: Harness) -> None:
    params = SamplingParams(logit_bias=((77, 100.0),))
    assert engine.ask(PROMPT, 9, sampling=params, stop=((77,),)).tokens == []
    longer = SamplingParams(logit_bias=((77, 100.0),), min_tokens=4)
    answer = engine.ask(PROMPT, 9, sampling=longer, stop=((77,),))
    assert len(answer.tokens) == 4 and answer.reason is FinishReason.STOP


def test_min_tokens_leaves_a_finished_grammar_its_end(engine: Harness) -> None:
    params = grammar_params(constrain.choice(["yes"]), min_tokens=10)
    answer = engine.ask(PROMPT, 20, sampling=params)
    assert text_of(answer.tokens) == "yes" and answer.reason is FinishReason.STOP


def run_tokens(harness: Harness, *requests: str) -> dict[str, list[Token]]:
    found: dict[str, list[Token]] = {i: [] for i in requests}
    left = set(requests)
    while left:
        event: Event
        for event in harness.events.get(timeout=60):
            if isinstance(event, Token):
                found[event.request_id].append(event)
            elif isinstance(event, Finished):
                left.discard(event.request_id)
    return found


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}])
def test_case_k13_logprobs_are_those_of_each_token(
    engine: Harness, params: dict[str, float]
) -> None:
    asked = SamplingParams(**params, logprobs=5)  # type: ignore[arg-type]
    plain = engine.submit(PROMPT, 12, sampling=SamplingParams(**params))  # type: ignore[arg-type]
    noted = engine.submit(PROMPT, 12, sampling=asked)
    none = engine.submit(PROMPT, 3, sampling=SamplingParams(logprobs=0))
    tokens = run_tokens(engine, plain, noted, none)
    assert [t.token for t in tokens[plain]] == [t.token for t in tokens[noted]]
    assert all(t.logprob is None and t.top == () for t in tokens[plain])
    assert all(t.logprob is not None and t.top == () for t in tokens[none])
    sequence = list(PROMPT)
    for t in tokens[noted]:
        logits = np.array(engine.model._model(mx.array([sequence])))[0, -1].astype(np.float64)
        expected = logits - np.log(np.exp(logits).sum())
        assert t.logprob == pytest.approx(expected[t.token], abs=1e-3)
        assert [value for _, value in t.top] == pytest.approx(sorted(expected)[:-6:-1], abs=1e-3)
        assert sum(math.exp(value) for _, value in t.top) <= 1 + 1e-6
        if not params:
            assert t.top[0] == (t.token, t.logprob)
        sequence.append(t.token)


def test_case_k12_a_seed_gives_the_same_tokens_beside_constrained_rows(engine: Harness) -> None:
    params = SamplingParams(temperature=1.0, seed=42, top_p=0.9)
    alone = engine.ask(PROMPT, 30, sampling=params).tokens
    grammar = constrain.json_schema(SCHEMA)
    other = engine.submit(PROMPT, 60, sampling=grammar_params(grammar))
    again = engine.submit(PROMPT, 30, sampling=params)
    assert engine.collect(other, again)[again].tokens == alone
    assert engine.ask(PROMPT, 30, sampling=SamplingParams(temperature=1.0, seed=43)).tokens != alone


def test_an_abort_ends_a_constrained_row(engine: Harness) -> None:
    request_id = engine.submit(PROMPT, 4000, sampling=grammar_params(constrain.regex("a*b")))
    engine.engine.abort(request_id)
    answer = engine.collect(request_id)[request_id]
    assert answer.reason in (FinishReason.ABORT, FinishReason.STOP)


def test_everything_survives_the_way_to_an_engine_process() -> None:
    grammar = constrain.json_schema(SCHEMA, after="</think>")
    params = SamplingParams(grammar=grammar, logprobs=2, logit_bias=((1, 2.5),), min_tokens=3)
    request = EngineRequest("r", (1, 2), 5, params)
    import orjson

    frame = orjson.loads(orjson.dumps(request_frame(request)))
    assert request_from(frame) == request
    event = Token("r", 4, -0.5, ((4, -0.5), (9, -1.25)))
    assert events_from(orjson.loads(orjson.dumps(events_frame([event])))) == [event]


class Only:
    """A constraint that allows one token."""

    eos_ids = ()
    error = ""

    def follow(self, token: int) -> None:
        pass

    def mask(self) -> np.ndarray:
        words = np.zeros(tiny.NUM_VOCAB // 32, dtype=np.uint32)
        words[2] = 1 << 5
        return words


def test_logits_of_free_rows_are_bit_equal_beside_a_constrained_one() -> None:
    model, inputs = tiny.build("llama"), mx.array([[3], [4], [5]])
    kept = Shape(Only(), None, lambda error: None)
    before = np.array(shaped(model, inputs, None, [None, None, None]))
    after = np.array(shaped(model, inputs, None, [None, kept, None]))
    assert (before[[0, 2]] == after[[0, 2]]).all()
    assert np.flatnonzero(np.isfinite(after[1, 0])).tolist() == [69]


def test_a_noter_keeps_tokens_and_steps_together() -> None:
    noter = Noter(1)
    noter.settle(mx.array(3))  # the prompt's
    for best in (0, 2):
        noter.see(mx.array([1.0 if idx == best else 0.0 for idx in range(3)]))
        noter.settle(mx.array(best))
    assert [noter.take()[1][0][0] for _ in range(2)] == [0, 2]


def test_a_regex_is_matched_as_a_whole(engine: Harness) -> None:
    params = grammar_params(constrain.regex("[a-c]{3,5}x"))
    answer = engine.ask(PROMPT, 20, sampling=params)
    assert re.fullmatch("[a-c]{3,5}x", text_of(answer.tokens))
