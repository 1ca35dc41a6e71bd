"""K1 and K5: dialects of elements and objects give the same for every cut."""

import codecs
import itertools
import json
from collections.abc import Sequence

import pytest

from omlx.server.parse.elements import element_formats
from omlx.server.parse.harmony import HARMONY
from omlx.server.parse.keyed import GLM4, LAGUNA
from omlx.server.parse.said import CallFormat, Said, Text
from omlx.server.parse.spoken import GEMMA4, KIMI_K2
from omlx.server.parse.tagged import QWEN3_CODER
from tests.unit.server.parse.samples_xml import SAMPLES, TOOLS, Sample, joined, parts, qwen

FORMATS: dict[str, CallFormat] = {one.name: one for one in element_formats()}
CASES = [
    pytest.param(name, sample, id=f"{name}-{sample.name}".replace(" ", "-"))
    for name, samples in SAMPLES.items()
    for sample in samples
]


def run(form: CallFormat, pieces: Sequence[str], *, is_cut: bool = False) -> list[Said]:
    parser = form.parser(TOOLS)
    said = [one for piece in pieces for one in parser.add(piece)]
    return joined([*said, *parser.finish(is_cut=is_cut)])


def decoded(data: bytes, *cuts: int) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    edges = [0, *cuts, len(data)]
    return [decoder.decode(data[a:b]) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_case_k5_what_an_answer_says(name: str, sample: Sample) -> None:
    said = run(FORMATS[name], [sample.text], is_cut=sample.is_cut)
    assert parts(said) == sample.parts
    for one in said:
        if isinstance(one, Text) and name != "harmony":
            assert sample.text[one.at :].startswith(one.text)


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_case_k1_the_same_for_every_cut(name: str, sample: Sample) -> None:
    form, data = FORMATS[name], sample.text.encode()
    whole = run(form, [sample.text], is_cut=sample.is_cut)
    assert run(form, list(sample.text), is_cut=sample.is_cut) == whole
    for cut in range(len(data) + 1):
        assert run(form, decoded(data, cut), is_cut=sample.is_cut) == whole, cut


def pairs(longest: int, shortest: int = 0) -> list[object]:
    texts = [(case, str(case.values[1].text)) for case in CASES]
    return [case for case, text in texts if shortest <= len(text) <= longest]


@pytest.mark.parametrize(("name", "sample"), pairs(56))
def test_case_k1_the_same_for_every_pair_of_cuts(name: str, sample: Sample) -> None:
    check_pairs(name, sample)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sample"), pairs(120, 57))
def test_case_k1_the_same_for_every_pair_of_cuts_in_longer_answers(
    name: str, sample: Sample
) -> None:
    check_pairs(name, sample)


def check_pairs(name: str, sample: Sample) -> None:
    form, data = FORMATS[name], sample.text.encode()
    whole = run(form, [sample.text], is_cut=sample.is_cut)
    for pair in itertools.combinations(range(1, len(data)), 2):
        assert run(form, decoded(data, *pair), is_cut=sample.is_cut) == whole, pair


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_that_ends_anywhere_is_no_error(name: str) -> None:
    """Every beginning of an answer: calls are whole, or open only if a limit cut them."""
    for sample in SAMPLES[name][:14]:
        for end in range(len(sample.text)):
            text = sample.text[:end]
            for part in parts(run(FORMATS[name], [text])):
                assert isinstance(part, str) or part[0] != "open", text
            parts(run(FORMATS[name], [text], is_cut=True))


def test_a_string_is_given_out_while_it_comes_in() -> None:
    parser = QWEN3_CODER.parser(TOOLS)
    parser.add("<tool_call>\n<function=write>\n<parameter=path>\n")
    assert "".join(one.text for one in parser.add('a"b\nc')) == 'a\\"b\\nc'  # type: ignore[union-attr]


def test_time_grows_with_the_text_only() -> None:
    text = qwen([("write", {"path": "a\n" * 20_000})]) * 5
    parser = QWEN3_CODER.parser(TOOLS)
    said = [one for char in text for one in parser.add(char)]
    assert len(parts(joined(said))) == 5
    assert len(parts(run(QWEN3_CODER, [qwen([("look", {})]) * 5_000]))) == 5_000
    assert run(QWEN3_CODER, [" "] * 50_000 + ["x"]) == [Text(" " * 50_000 + "x", 0)]


def test_kept_marks_are_those_of_the_format() -> None:
    assert "<|channel|>" in HARMONY.kept and "<|call|>" in HARMONY.kept
    assert "<|tool_call_begin|>" in KIMI_K2.kept
    assert '<|"|>' in GEMMA4.kept and "{" not in GEMMA4.kept
    assert "<arg_key>" in GLM4.kept and LAGUNA.kept == GLM4.kept


def test_kimi_arguments_keep_the_text_that_the_model_wrote() -> None:
    raw = '{"path" :  "\\u00e9",\n "content": "\\n"}'
    head = "<|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"
    said = run(KIMI_K2, [f"{head}{raw}<|tool_call_end|>"])
    assert said[1].text == raw  # type: ignore[union-attr]
    assert json.loads(raw) == parts(said)[0][1]
