"""Grammars of calls: what they accept is what the parsers read."""

import re
from pathlib import Path
from typing import Any

import llguidance
import pytest

from omlx.server.parse.elements import element_formats
from omlx.server.parse.lark import Rules
from tests.fakes.model_folder import tokenizer_with
from tests.unit.server.parse.samples_xml import CALLS, TOOLS, WRITERS, parts, tool

FORMATS = {form.name: form for form in element_formats() if form.name in WRITERS}


@pytest.fixture(scope="module")
def tokens() -> Any:
    return llguidance.LLTokenizer("byte")


def accepts(tokens: Any, grammar: str, text: str) -> bool:
    is_wrong, said = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokens)
    assert not is_wrong, said
    matcher = llguidance.LLMatcher(tokens, grammar)
    ids = tokens.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_accepted_and_parse_back(tokens: Any, name: str) -> None:
    form = FORMATS[name]
    grammar = form.grammar(TOOLS, is_parallel=True)
    for sample, calls in CALLS.items():
        text = WRITERS[name](calls)
        assert accepts(tokens, grammar, text), (sample, text)
        parser = form.parser(TOOLS)
        assert parts([*parser.add(text), *parser.finish(is_cut=False)])[-1] == calls[-1]


@pytest.mark.parametrize("name", FORMATS)
def test_other_text_is_not_accepted(tokens: Any, name: str) -> None:
    write, grammar = WRITERS[name], FORMATS[name].grammar(TOOLS, is_parallel=False)
    assert accepts(tokens, grammar, write([("look", {})]))
    assert accepts(tokens, grammar, write([("write", {"path": "a", "mode": "new"})]))
    for calls in (
        [("look", {}), ("look", {})],
        [("other", {})],
        [("write", {})],
        [("write", {"content": "no path"})],
        [("write", {"path": "a", "mode": "none of these"})],
        [("draw", {"at": {"x": 1}})],
        [("draw", {"at": {"x": 1, "y": 1}, "width": 1.5})],
    ):
        assert not accepts(tokens, grammar, write(calls)), calls
    assert not accepts(tokens, grammar, "text")


@pytest.mark.parametrize("name", FORMATS)
def test_special_tokens_are_written_as_tokens(tokens: Any, name: str) -> None:
    text = FORMATS[name].grammar(TOOLS, is_parallel=True, is_special=lambda mark: True)  # type: ignore[call-arg]
    literals = re.findall(r'"(?:[^"\\]|\\.)*"', re.sub(r"%json .*", "", text))
    assert literals and not any(re.search(r"<[^<>\s]+>", one) for one in literals)


def test_a_token_that_the_tokenizer_has_stands_for_itself(tmp_path: Path) -> None:
    tokens = llguidance.LLTokenizer(tokenizer_with(tmp_path, "<|im_end|>"))
    rules = Rules(lambda mark: mark == "<|im_end|>")
    grammar = rules.text(f"{rules.literal('<a>')} {rules.free('<|im_end|>')}")
    matcher = llguidance.LLMatcher(tokens, grammar)
    assert not matcher.get_error()
    end = tokens.tokenize_str("<|im_end|>", parse_special=True)
    ids = [*tokens.tokenize_str("<a>any text"), *end]
    assert len(end) == 1 and matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


def test_references_are_followed(tokens: Any) -> None:
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/node"}, "s": {"$ref": "#/$defs/s"}},
    }
    schema = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}, "s": {"$ref": "#/$defs/s"}},
        "required": ["node"],
        "$defs": {"node": node, "s": {"type": "string"}},
    }
    for name, form in FORMATS.items():
        grammar = form.grammar([tool("f", schema)], is_parallel=False)
        text = WRITERS[name]([("f", {"node": {"next": {"s": "x"}}, "s": "07"})])
        assert accepts(tokens, grammar, text), name
