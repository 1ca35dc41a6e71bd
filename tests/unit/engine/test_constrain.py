"""Grammars: what is refused, what a row may say next, and where it stands after a break."""

import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import pytest

from omlx.engine import constrain
from omlx.engine.constrain import Compiled, Constraint, Vocabulary
from omlx.engine.request import Grammar
from tests.fakes.model_folder import write_model_folder

EOS = 256
NUM_VOCAB = 300  # more than the tokenizer has, and no multiple of 32


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(write_model_folder(tmp_path_factory.mktemp("model")), NUM_VOCAB)


def begin(vocabulary: Vocabulary, grammar: Grammar, text: bytes = b"") -> Constraint:
    return Compiled(vocabulary, grammar).begin(text)


def allowed(constraint: Constraint) -> set[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
    assert not constraint.error
    return set(np.flatnonzero(bits).tolist())


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "bogus"}, "bogus"),
        ({"$ref": "#/$defs/nothing"}, "nothing"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"contains": {}}}}, "contains"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {}}, "if"),
        ({"allOf": [{"type": "string"}, {"type": "number"}]}, "nsatisfiable"),
        ({"type": "string", "format": "weird"}, "format"),
        ({"enum": [f"word {n}" for n in range(50_000)]}, "KiB"),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
        (False, "nsatisfiable"),
    ],
)
def test_case_k10_what_a_schema_asks_for_is_kept_to_or_named(schema: Any, reason: str) -> None:
    wrong = constrain.check(constrain.json_schema(schema))
    assert wrong is not None and reason in wrong


def test_a_property_may_be_named_like_a_keyword() -> None:
    schema = {"type": "object", "properties": {"contains": {"type": "string"}}}
    assert constrain.check(constrain.json_schema(schema)) is None


def test_a_least_number_of_properties_is_kept_to(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "minProperties": 1}
    assert ord("}") not in allowed(begin(vocabulary, constrain.json_schema(schema), b"{"))


def test_good_grammars_pass_the_check() -> None:
    tree = {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"type": "null"}, {
        "type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
        "required": ["next"], "additionalProperties": False}]}}}  # fmt: skip
    for grammar in (
        constrain.json_schema(tree),
        constrain.json_object(),
        constrain.regex("[a-z]+"),
        constrain.choice(["yes", 'a "b"\n']),
        constrain.lark('start: "a" start | "b"'),
    ):
        assert constrain.check(grammar) is None


def test_hostile_schemas_are_refused_or_compiled_but_never_raise() -> None:
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    constrain.check(constrain.json_schema(deep))
    constrain.check(constrain.regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}"))
    assert constrain.check(constrain.lark("nonsense")) is not None
    assert constrain.check(Grammar("{")) is not None


def test_the_server_can_check_without_mlx() -> None:
    code = "import sys, omlx.engine.constrain; sys.exit('mlx' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_choice_is_followed_to_its_end(vocabulary: Vocabulary) -> None:
    row = begin(vocabulary, constrain.choice(["yes", "no"]))
    assert allowed(row) == {ord("y"), ord("n")}
    for letter in b"no":
        row.accept(letter)
    assert row.is_done and allowed(row) == {EOS}
    row.accept(EOS)
    row.accept(5)  # of a step that is thrown away
    assert not row.error


def test_a_complete_answer_may_end_or_go_on(vocabulary: Vocabulary) -> None:
    assert allowed(begin(vocabulary, constrain.regex("a+"), b"a")) == {ord("a"), EOS}


def test_blanks_can_not_go_on_for_ever(vocabulary: Vocabulary) -> None:
    row = begin(vocabulary, constrain.json_object(), b'{"a":')
    assert ord(" ") in allowed(row) and ord("\n") not in allowed(row)
    row.accept(ord(" "))
    assert ord(" ") not in allowed(row)


def test_case_k10_thinking_is_outside_the_grammar(vocabulary: Vocabulary) -> None:
    grammar = constrain.choice(["yes"], after="</think>")
    row = begin(vocabulary, grammar, b"some thought</thin")
    free = allowed(row)
    assert EOS not in free and ord("x") in free
    row.accept(ord("k"))
    row.accept(ord(">"))
    assert allowed(row) == {ord("y")}


def test_a_row_goes_on_after_what_it_has_emitted(vocabulary: Vocabulary) -> None:
    compiled = Compiled(vocabulary, constrain.json_schema({"enum": ["ab", "cd"]}))
    whole, text = compiled.begin(b""), b'"ab"'
    for idx, letter in enumerate(text):
        assert allowed(compiled.begin(text[:idx])) == allowed(whole)
        whole.accept(letter)
    assert allowed(whole) == {EOS}


def test_only_the_input_of_later_steps_is_accepted(vocabulary: Vocabulary) -> None:
    row = begin(vocabulary, constrain.choice(["ab"]), b"a")
    row.follow(ord("a"))  # the last token of what was prefilled
    assert allowed(row) == {ord("b")}
    row.follow(ord("b"))
    assert row.is_done


def test_a_token_outside_the_grammar_is_an_error(vocabulary: Vocabulary) -> None:
    row = begin(vocabulary, constrain.choice(["ab"]))
    row.accept(ord("x"))
    assert row.error


def test_a_model_without_a_tokenizer_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokenizer.json"):
        Compiled(Vocabulary(tmp_path, 10), constrain.json_object())


def test_a_model_without_an_end_is_refused(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": None}))
    with pytest.raises(ValueError, match="ends an answer"):
        Compiled(Vocabulary(folder, 300), constrain.json_object())
