"""Every sample of every format, whole and cut anywhere."""

import codecs
import importlib
import itertools
import json
import time

import pytest

from omlx.server.parse.formats import call_formats
from omlx.server.parse.join import joined
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Text
from tests.unit.server.parse.samples import ARGUMENTS, SAMPLES, WRITERS, Call, Sample, gathered

CASES = [
    pytest.param(form, sample, id=f"{form}-{sample.name}")
    for form, samples in SAMPLES.items()
    for sample in samples
]


FORMATS = call_formats()


def parse(form, pieces, *, is_cut=False):
    """What a parser says to pieces of bytes, decoded as a detokenizer does it."""
    parser = FORMATS[form].parser([])
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    said = [part for piece in pieces for part in parser.add(decoder.decode(piece))]
    return joined([*said, *parser.finish(is_cut=is_cut)])


def cuts(data, *, pairs):
    """The pieces of every cut, and byte by byte."""
    yield [data[i : i + 1] for i in range(len(data))]
    for i in range(len(data) + 1):
        yield [data[:i], data[i:]]
    if pairs:
        for i, j in itertools.combinations_with_replacement(range(len(data) + 1), 2):
            yield [data[:i], data[i:j], data[j:]]


@pytest.mark.parametrize(("form", "sample"), CASES)
def test_a_sample_is_split_into_its_parts(form: str, sample: Sample):
    said = parse(form, [sample.text.encode()], is_cut=sample.is_cut)
    assert gathered(said) == list(sample.parts)
    for part in said:
        if isinstance(part, Text):
            assert sample.text[part.at : part.at + len(part.text)] == part.text


@pytest.mark.parametrize(("form", "sample"), CASES)
def test_case_k1_the_parts_are_the_same_for_every_cut(form: str, sample: Sample):
    data = sample.text.encode()
    whole = parse(form, [data], is_cut=sample.is_cut)
    for pieces in cuts(data, pairs=len(sample.text) <= 40):
        assert parse(form, pieces, is_cut=sample.is_cut) == whole, pieces


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "sample"), [case for case in CASES if 40 < len(case.values[1].text) <= 120]
)
def test_case_k1_the_parts_are_the_same_for_every_two_cuts(form: str, sample: Sample):
    data = sample.text.encode()
    whole = parse(form, [data], is_cut=sample.is_cut)
    for pieces in cuts(data, pairs=True):
        assert parse(form, pieces, is_cut=sample.is_cut) == whole, pieces


@pytest.mark.parametrize("form", SAMPLES)
def test_case_k1_no_end_of_the_text_loses_a_call_that_was_said_or_raises(form: str):
    """Ended anywhere, each begun call has arguments that parse; a cut one stays open."""
    for sample in SAMPLES[form]:
        for size in range(len(sample.text)):
            piece = sample.text[:size].encode()
            parts = gathered(parse(form, [piece]))
            assert all(part.is_ended for part in parts if isinstance(part, Call)), piece
            assert all(type(p.arguments) is dict for p in parts if isinstance(p, Call)), piece
            gathered(parse(form, [piece], is_cut=True))


@pytest.mark.parametrize("form", SAMPLES)
def test_case_k1_text_that_is_no_call_comes_back_whole(form: str):
    text = "A <tool_call> tag, [TOOL_CALLS] and [this](x).\r\n\r\n <b>{}</b>\n"
    for pieces in cuts(text.encode(), pairs=False):
        assert parse(form, pieces) == [Text(text, 0)]


def test_case_k1_a_call_that_fails_to_parse_is_text():
    text = 'First.\r\n<tool_call>\r\n{"name": 7}\r\n</tool_call> Last.'
    assert parse("hermes", [text.encode()]) == [Text(text, 0)]


@pytest.mark.parametrize("form", SAMPLES)
def test_case_k5_arguments_come_over_in_every_dialect(form: str):
    calls = [(f"tool_{number}", given) for number, given in enumerate(ARGUMENTS.values())]
    said = parse(form, [WRITERS[form](calls).encode()])
    assert gathered(said) == [Call(name, given) for name, given in calls]


@pytest.mark.parametrize("form", SAMPLES)
def test_case_k5_no_string_turns_into_a_number(form: str):
    given = {"zip": "007", "yes": "true", "none": "null", "float": "1.0"}
    (call,) = gathered(parse(form, [WRITERS[form]([("f", given)]).encode()]))
    assert call == Call("f", given)


@pytest.mark.parametrize("form", SAMPLES)
def test_case_a8_calls_that_come_at_once_are_numbered_one_by_one(form: str):
    calls = [("one", {"a": 1}), ("two", {"a": 2}), ("three", {"a": 3})]
    said = parse(form, [b"Now. ", WRITERS[form](calls).encode()])
    said = [part for part in said if not isinstance(part, CallArguments)]
    assert said == [
        Text("Now.", 0),
        CallBegan(0, "one"), CallEnded(0),
        CallBegan(1, "two"), CallEnded(1),
        CallBegan(2, "three"), CallEnded(2),
    ]  # fmt: skip


@pytest.mark.parametrize("form", [name for name in SAMPLES if name != "mistral_json"])
def test_arguments_are_said_as_they_arrive(form: str):
    text = WRITERS[form]([("f", {"a": "word " * 50, "b": 1})])
    parser = FORMATS[form].parser([])
    most = max((len(parser.add(char)) for char in text), default=0)
    parser = FORMATS[form].parser([])
    said = [part for part in parser.add(text[: text.index("word") + 100])]
    said_arguments = [part.text for part in said if isinstance(part, CallArguments)]
    assert sum(map(len, said_arguments)) >= 100
    assert most <= 2


def test_case_k5_a_call_without_a_tool_that_was_offered_is_a_call():
    text = '<tool_call>{"name": "nobody_knows", "arguments": {}}</tool_call>'
    assert gathered(parse("hermes", [text.encode()])) == [Call("nobody_knows", {})]


@pytest.mark.parametrize("form", SAMPLES)
def test_a_long_call_takes_time_in_proportion(form: str):
    """No token makes the parser look at all of the call again."""
    spent = {}
    for size in (500, 4000):
        text = WRITERS[form]([("f", {"a": "x\n" * size, "b": [1] * size})])
        pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
        parser = FORMATS[form].parser([])
        began = time.process_time()
        for piece in pieces:
            parser.add(piece)
        spent[size] = time.process_time() - began
        parser.finish(is_cut=False)
    assert spent[4000] < 8 * 4 * max(spent[500], 0.01)


@pytest.mark.parametrize("junk", ["[" * 3000, '{"a":' * 3000, "9" * 6000, "\\" * 99, "'" * 99])
def test_nothing_a_model_writes_raises(junk: str):
    for form, write in WRITERS.items():
        text = write([("f", {"a": "MARK"})])
        for broken in (text.replace('"MARK"', junk).replace("'MARK'", junk), junk + text):
            for part in gathered(parse(form, [broken.encode()])):
                assert not isinstance(part, Call) or type(part.arguments) is dict


def oracle(name):
    return importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_case_k5_the_result_is_that_of_the_reference_parser(arguments: dict[str, object]):
    """What the model library's own parsers read, on the complete text of a call."""
    tags = {
        "hermes": ("json_tools", "<tool_call>", "</tool_call>"),
        "mistral": ("mistral", "[TOOL_CALLS]", ""),
        "mistral_json": ("mistral", "[TOOL_CALLS]", ""),
        "pythonic": ("pythonic", "<|tool_call_start|>", "<|tool_call_end|>"),
    }
    for form, (name, before, behind) in tags.items():
        text = WRITERS[form]([("f", arguments)])
        expected = oracle(name)(text.removeprefix(before).removesuffix(behind))
        (call,) = gathered(parse(form, [text.encode()]))
        assert isinstance(call, Call)
        assert {"name": call.name, "arguments": call.arguments} == {
            key: expected[key] for key in ("name", "arguments")
        }
        assert json.dumps(call.arguments) == json.dumps(expected["arguments"])
