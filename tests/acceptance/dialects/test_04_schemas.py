"""Schema fuzz: answers of random schemas are valid JSON, in batches mixed with free requests."""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from omlx.engine import constrain
from omlx.engine.request import FinishReason, SamplingParams
from tests import models
from tests.acceptance.conftest import Figure
from tests.fakes import tiny
from tests.fakes.harness import Harness

NUM_SCHEMAS = 300
NUM_AT_ONCE = 4  # with as many free rows beside them
MAX_TOKENS = 160
NUM_VOCAB = 49152 + 13  # padded, and no multiple of 32
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
Schema = dict[str, Any]


def make_schema(rng: random.Random, depth: int = 0) -> Schema:
    """Any schema; deeper ones are simpler."""
    simple = [string, number, integer, enum, const, boolean]
    kinds = simple if depth >= 3 else [*simple, obj, obj, array, any_of]
    return rng.choice(kinds)(rng, depth)


def string(rng: random.Random, depth: int) -> Schema:
    match rng.randrange(4):
        case 0:
            return {"type": "string", "pattern": rng.choice(["^[a-z]{2,6}$", "^v\\d+\\.\\d+$"])}
        case 1:
            return {"type": "string", "format": rng.choice(FORMATS)}
        case 2:
            low = rng.randrange(4)
            return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(12)}
        case _:
            return {"type": "string", "maxLength": 20}


def number(rng: random.Random, depth: int) -> Schema:
    low = rng.randrange(-50, 50)
    return {"type": "number", "minimum": low, "maximum": low + rng.randrange(1, 100)}


def integer(rng: random.Random, depth: int) -> Schema:
    low = rng.randrange(-50, 50)
    return {"type": "integer", "minimum": low, "exclusiveMaximum": low + rng.randrange(2, 1000)}


def enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample(["red", 'a "b"', "ü\n", 1, 2.5, None, True], rng.randrange(1, 5))}


def const(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice(["x", 7, None, False])}


def boolean(rng: random.Random, depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def obj(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(["id", "name", "a b", "list", "päth", "x"], rng.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: make_schema(rng, depth + 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }


def array(rng: random.Random, depth: int) -> Schema:
    low = rng.randrange(3)
    items = make_schema(rng, depth + 1)
    return {"type": "array", "items": items, "minItems": low, "maxItems": low + rng.randrange(3)}


def any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [make_schema(rng, depth + 1) for _ in range(rng.randrange(2, 4))]}


def whole(rng: random.Random) -> Schema:
    """A schema with definitions in a third of the cases, one of which refers to itself."""
    if rng.random() < 0.67:
        return rng.choice([obj, obj, array, any_of])(rng, 0)
    node = {
        "type": "object",
        "properties": {
            "value": {"$ref": "#/$defs/leaf"},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/node", "$defs": {"node": node, "leaf": make_schema(rng, 2)}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A tiny random model with a real tokenizer's vocabulary, padded."""
    folder, demo = tmp_path_factory.mktemp("model"), models.demo_model()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / name, folder / name)
    config = {**tiny.CONFIGS["llama"], "num_hidden_layers": 1, "vocab_size": NUM_VOCAB}
    model = tiny.build_config(config)
    harness = Harness(model, folder / "cache", model_path=str(folder), cache_enabled=False)
    yield harness
    assert harness.stop() == 0


def test_300_random_schemas_are_kept_to(engine: Harness, figure: Figure) -> None:
    """Valid, or an honest `length`; that no mask reaches a free row is a unit test's."""
    rng = random.Random(4)
    tokenizer: Any = Tokenizer.from_file(str(models.demo_model() / "tokenizer.json"))
    schemas = [whole(rng) for _ in range(NUM_SCHEMAS)]
    grammars = [constrain.json_schema(schema) for schema in schemas]
    assert [constrain.check(g) for g in grammars] == [None] * NUM_SCHEMAS
    prompts = [[rng.randrange(100, 40000) for _ in range(8)] for _ in range(NUM_AT_ONCE)]
    free = [SamplingParams(temperature=1.0, seed=n) for n in range(NUM_AT_ONCE)]
    asked = list(zip(prompts, free, strict=True))

    def submit_free() -> list[str]:
        return [engine.submit(p, MAX_TOKENS, sampling=s) for p, s in asked]

    alone = submit_free()
    answers = engine.collect(*alone)
    expected = [answers[i].tokens for i in alone]
    outcomes: Counter[str] = Counter()
    control = 0  # sums are rounded otherwise in a larger batch: rows beside free ones change too
    for turn in range(10):
        beside = submit_free()
        others = [engine.submit(prompts[0], 20 * n + turn + 5) for n in range(NUM_AT_ONCE)]
        answers = engine.collect(*beside, *others)
        pairs = zip(beside, expected, strict=True)
        control += sum(answers[i].tokens != tokens for i, tokens in pairs)
    for start in range(0, NUM_SCHEMAS, NUM_AT_ONCE):
        beside = submit_free()
        kept: dict[str, Schema] = {}
        for idx in range(start, start + NUM_AT_ONCE):
            params = SamplingParams(temperature=1.0, seed=idx, grammar=grammars[idx])
            kept[engine.submit(prompts[0], MAX_TOKENS, sampling=params)] = schemas[idx]
        answers = engine.collect(*beside, *kept)
        outcomes["changed"] += sum(
            answers[i].tokens != tokens for i, tokens in zip(beside, expected, strict=True)
        )
        for request_id, schema in kept.items():
            answer = answers[request_id]
            assert answer.failed is None, (schema, answer.failed)
            text = tokenizer.decode(answer.tokens, skip_special_tokens=False)
            outcomes[outcome(schema, text, answer.reason)] += 1
    figure(
        f"{NUM_SCHEMAS} schemas: {outcomes['valid']} valid, {outcomes['length']} length, "
        f"{outcomes['invalid']} invalid; {outcomes['changed']} of {NUM_SCHEMAS} free "
        f"rows beside them drew otherwise than in a batch of {NUM_AT_ONCE}, and {control} of "
        f"{10 * NUM_AT_ONCE} beside other free rows"
    )
    assert outcomes["invalid"] == 0 and outcomes["valid"] > NUM_SCHEMAS / 2


def outcome(schema: Schema, text: str, reason: FinishReason | None) -> str:
    """What became of one answer."""
    if reason is FinishReason.LENGTH:
        return "length"
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"invalid: {schema} {text!r} {reason} {error}")
        return "invalid"
    return "valid" if reason is FinishReason.STOP else "invalid"


def test_the_cost_of_a_step(engine: Harness, figure: Figure) -> None:
    """For information: eight rows that are constrained against eight that are free, in turn."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    endless = constrain.json_schema({"type": "array", "items": {"type": "number"}, "minItems": 500})
    for turn in range(8):
        is_kept = turn % 4 in (1, 2)
        params = SamplingParams(grammar=endless if is_kept else None)
        started = time.monotonic()
        ids = [engine.submit([5, 6, 7, n + 10], 48, sampling=params) for n in range(8)]
        engine.collect(*ids)
        seconds[is_kept].append(time.monotonic() - started)
    ratio = min(seconds[True]) / min(seconds[False])
    step_ms = min(seconds[False]) / 48 * 1000
    figure(
        f"a step of 8 constrained rows takes {ratio:.2f} of one of 8 free rows ({step_ms:.1f} ms)"
    )


def test_the_schemas_are_of_many_kinds() -> None:
    rng = random.Random(4)
    text = json.dumps([whole(rng) for _ in range(NUM_SCHEMAS)])
    for word in ("$ref", "anyOf", "enum", "const", "minItems", "pattern", "format", "maxLength",
                 "minimum", "exclusiveMaximum", "additionalProperties"):  # fmt: skip
        assert text.count(f'"{word}"') > 20, word


def test_the_mask_is_what_makes_answers_valid(
    engine: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, what this file checks fails."""
    monkeypatch.setattr("omlx.engine.shaping._masked", lambda logits, words: logits)
    params = SamplingParams(temperature=1.0, seed=1, grammar=constrain.json_object())
    answer = engine.collect(i := engine.submit([5, 6], 20, sampling=params))[i]
    assert answer.failed is not None, "the answer has left its grammar, and that is said"
