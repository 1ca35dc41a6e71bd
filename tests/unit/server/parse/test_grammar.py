"""Grammars of calls: valid, they take what they should, and the parser reads what they take."""

import json

import llguidance
import pytest

from omlx.server.parse.elements import element_formats
from omlx.server.parse.formats import call_formats
from omlx.server.parse.grammar import mark, numbered
from omlx.server.parse.join import joined
from tests.fakes.model_folder import tokenizer_with
from tests.unit.server.parse.samples import Call, gathered

# Those of elements have grammars of another kind, and tests of their own.
ELEMENTS = {form.name for form in element_formats()}
FORMATS = {name: form for name, form in call_formats().items() if name not in ELEMENTS}


def tool(name, properties, required=()):
    schema = {"type": "object", "properties": properties, "required": list(required),
              "additionalProperties": False}  # fmt: skip
    return {"type": "function", "function": {"name": name, "parameters": schema}}


ADD = tool("add", {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/n"}}, ["a"])
ADD["function"]["parameters"]["$defs"] = {"n": {"type": "array", "items": {"type": "boolean"}}}
SAY = tool("say-it", {"text": {"type": "string"}, "loud": {"type": "boolean"}}, ["text"])
NOW = {"type": "function", "function": {"name": "now"}}
QUIET = tool("quiet", {"why": {"type": "string"}})
TOOLS = [ADD, SAY, NOW, QUIET]
CALLS = [
    [("add", {"a": 1})],
    [("add", {"a": -12, "b": [True, False]})],
    [("say-it", {"text": 'hi "you"\n</tool_call>'})],
    [("now", {})],
    [("quiet", {})],
    [("add", {"a": 1}), ("say-it", {"text": "é👍", "loud": True}), ("now", {})],
]


def _written(form, calls):
    """The calls as the grammar of a format wants them."""
    pairs = [(name, json.dumps(given, ensure_ascii=False)) for name, given in calls]
    begin, end, sep = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
    around = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
    fenced = around.format("\n".join(
        f"{begin}function{sep}{n}\n```json\n{a}\n```{end}" for n, a in pairs
    ))  # fmt: skip
    listed = ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in pairs)
    keywords = ", ".join(
        f"{n}({', '.join(f'{k}={json.dumps(v, ensure_ascii=False)}' for k, v in given.items())})"
        for n, given in calls
    )
    cohere = ", ".join(
        f'{{"tool_call_id": "0", "tool_name": "{n}", "parameters": {a}}}' for n, a in pairs
    )
    return {
        "hermes": "\n".join(
            f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in pairs
        ),
        "llama3_json": "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in pairs),
        "pythonic": f"<|tool_call_start|>[{keywords}]<|tool_call_end|>",
        "llama4_pythonic": f"[{keywords}]",
        "mistral": "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in pairs),
        "mistral_json": f"[TOOL_CALLS][{listed}]",
        "deepseek_v3": fenced,
        "deepseek_r1": fenced,
        "deepseek_v31": around.format("".join(f"{begin}{n}{sep}{a}{end}" for n, a in pairs)),
        "granite": f"<|tool_call|>[{listed}]",
        "cohere": f"<|START_ACTION|>[{cohere}]<|END_ACTION|>",
    }[form]


@pytest.fixture(scope="module")
def tokenizer():
    return llguidance.LLTokenizer("byte")


def takes(tokenizer, grammar, text):
    """Whether a grammar takes a text as a whole."""
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("form", FORMATS)
def test_the_grammar_is_valid(tokenizer, form):
    for is_parallel in (False, True):
        lark = FORMATS[form].grammar(TOOLS, is_parallel=is_parallel)
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
        assert not is_error, (messages, lark)
        assert not messages


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("calls", CALLS, ids=lambda calls: "+".join(name for name, _ in calls))
def test_the_grammar_takes_calls_that_the_parser_reads(tokenizer, form, calls):
    text = _written(form, calls)
    assert takes(tokenizer, FORMATS[form].grammar(TOOLS, is_parallel=True), text)
    alone = FORMATS[form].grammar(TOOLS, is_parallel=False)
    assert takes(tokenizer, alone, text) is (len(calls) == 1)
    parser = FORMATS[form].parser(TOOLS)
    said = joined([*parser.add(text), *parser.finish(is_cut=False)])
    assert gathered(said) == [Call(name, given) for name, given in calls]


@pytest.mark.parametrize("form", FORMATS)
def test_the_grammar_takes_nothing_else(tokenizer, form):
    lark = FORMATS[form].grammar(TOOLS, is_parallel=True)
    for calls in ([("other", {})], [("add", {"a": "x"})], [("add", {"b": []})], [("say-it", {})]):
        assert not takes(tokenizer, lark, _written(form, calls))
    for text in ("", "Hello", f"{_written(form, CALLS[0])} and"):
        assert not takes(tokenizer, lark, text)


@pytest.mark.parametrize("form", FORMATS)
def test_marks_that_are_tokens_are_written_as_tokens(form):
    ids = {mark: number for number, mark in enumerate(sorted(FORMATS[form].kept), 100)}
    plain = FORMATS[form].grammar(TOOLS, is_parallel=True)
    special = FORMATS[form].grammar(TOOLS, is_parallel=True, is_special=ids.__contains__)
    special = numbered(special, ids.get)
    for token, number in ids.items():
        text = json.dumps(token, ensure_ascii=False)
        written = f" {token} " if token.startswith("<") else f" <[{number}]> "
        spaced = special.replace("\n", " \n ")
        assert (written in spaced) is (text in plain)
        assert text not in special


def test_marks_that_are_tokens_are_taken_as_tokens(tmp_path):
    tokenizer = llguidance.LLTokenizer(tokenizer_with(tmp_path, "<|im_start|>"))
    (start,) = tokenizer.tokenize_str("<|im_start|>", parse_special=True)
    tokens = {"<|im_start|>": start, "[TOOL_CALLS]": start}
    for text in tokens:
        piece = mark(text, tokens.__contains__)
        lark = numbered(f'start: {piece} "a"', tokens.get)
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        assert matcher.try_consume_tokens([start, *tokenizer.tokenize_str("a")]) == 2
        assert matcher.is_accepting()
