import itertools

import pytest

from omlx.server.parse.formats import call_formats
from omlx.server.parse.join import joined
from omlx.server.parse.reasoning import REASONING
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Reasoning, Text
from omlx.server.parse.speech import Speech, SpeechForm
from tests.unit.server.parse.samples import SAMPLES, gathered

MARKS = {entry.name: entry for entry in REASONING}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
CALLED = [CallBegan(0, "f"), CallArguments(0, '{"a": 1}'), CallEnded(0)]
R, T = Reasoning, Text


def say(pieces, *, marks="think", calls=None, tools=(), is_open=False, is_cut=False):
    form = SpeechForm(MARKS.get(marks), call_formats().get(calls))
    speech = Speech(form, tools, is_open=is_open)
    said = [part for piece in pieces for part in speech.add(piece)]
    return joined([*said, *speech.finish(is_cut=is_cut)])


THINKING = [
    # text, whether the prompt opened the block, parts
    ("<think>a b</think>c", False, [R("a b"), T("c", 18)]),
    ("<think>\n a\n\nb \n</think>\n\n c d\n", False, [R("a\n\nb"), T("c d\n", 26)]),
    (" \n<think>a</think>b", False, [R("a"), T("b", 18)]),
    ("a b</think>\nc", True, [R("a b"), T("c", 12)]),
    ("\n\na</think>c", True, [R("a"), T("c", 11)]),
    ("<think>\na</think>c", True, [R("a"), T("c", 17)]),
    ("a <think> b</think>c", True, [R("a <think> b"), T("c", 19)]),
    ("never", True, [R("never")]),
    ("never \n", False, [T("never \n", 0)]),
    ("  x <think>y</think>", False, [T("  x <think>y</think>", 0)]),
    ("a</think>b", False, [T("a</think>b", 0)]),
    ("<think></think>\n", False, []),
    ("<think>\n\n</think>\n\nHi", False, [T("Hi", 19)]),
    ("<think>a</think>\n<think>b</think>c", False, [R("ab"), T("c", 33)]),
    ("<think>a</thi", False, [R("a</thi")]),
    ("<thi", False, [T("<thi", 0)]),
    ("<think", True, [R("<think")]),
    ("</think>a", True, [T("a", 8)]),
    ("<think>a < b </ c</think><b>", False, [R("a < b </ c"), T("<b>", 25)]),
    ("<think>👍</think>é👍", False, [R("👍"), T("é👍", 16)]),
    ("", False, []),
    (" \n", False, [T(" \n", 0)]),
]


@pytest.mark.parametrize(("text", "is_open", "parts"), THINKING)
def test_case_k17_thinking_is_the_same_for_every_cut(text, is_open, parts):
    assert say([text], is_open=is_open) == parts
    assert say(list(text), is_open=is_open) == parts
    for first, second in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        pieces = [text[:first], text[first:second], text[second:]]
        assert say(pieces, is_open=is_open) == parts


@pytest.mark.parametrize("marks", REASONING, ids=lambda marks: marks.name)
def test_case_k17_every_pair_of_marks_is_known(marks):
    for opening, closing in itertools.product(marks.opens, marks.closes):
        text = f"{opening}\nhm {{}}\n{closing}\nYes."
        for pieces in ([text], list(text)):
            assert say(pieces, marks=marks.name) == [R("hm {}"), T("Yes.", len(text) - 4)]
        text = f"hm\n{closing}\n\nYes."
        said = say(list(text), marks=marks.name, is_open=True)
        assert said == [R("hm"), T("Yes.", len(text) - 4)]


def test_case_k17_a_model_that_always_thinks_needs_no_opening_mark():
    assert say(["a</th", "ink>b"], marks="always_think") == [R("a"), T("b", 9)]


def test_case_a4_thinking_that_a_limit_cuts_is_not_said_again_as_text():
    for is_open, text in ((False, "<think>I wonder "), (True, "I wonder ")):
        for pieces in ([text], list(text)):
            assert say(pieces, is_open=is_open, is_cut=True) == [R("I wonder ")]
            assert say(
                pieces, is_open=is_open, is_cut=True, calls="hermes", tools=TOOLS
            ) == [R("I wonder ")]  # fmt: skip


def test_thinking_is_given_out_at_once():
    speech = Speech(SpeechForm(MARKS["think"], None))
    assert speech.add("<think>") == []
    assert speech.add("\nso ") == [R("so")]
    assert speech.add("it <") == [R(" it")]
    assert speech.add("b") == [R(" <b")]


@pytest.mark.parametrize("tools", [(), []])
def test_case_k4_without_tools_the_markup_of_calls_is_content(tools):
    for pieces in ([CALL], list(CALL)):
        assert say(pieces, calls="hermes", tools=tools) == [T(CALL, 0)]
    assert say([CALL], calls=None, tools=TOOLS) == [T(CALL, 0)]


def test_case_k4_with_tools_no_markup_is_content():
    text = f"<think>\nhm {CALL}\n</think>\n\nNow:\n{CALL}\n\nDone."
    for pieces in ([text], list(text)):
        assert say(pieces, calls="hermes", tools=TOOLS) == [
            R(f"hm {CALL}"), T("Now:", text.index("Now")), *CALLED, T("Done.", len(text) - 5),
        ]  # fmt: skip


def test_a_call_may_write_the_marks_of_thinking():
    call = '<tool_call>{"name": "f", "arguments": {"a": "<think>x</think>"}}</tool_call>'
    for text in (call, f"<think>hm</think>{call}"):
        said = say(list(text), calls="hermes", tools=TOOLS)
        assert said[-3:] == [
            CallBegan(0, "f"), CallArguments(0, '{"a": "<think>x</think>"}'), CallEnded(0),
        ]  # fmt: skip


def test_cohere_thinks_acts_and_answers_between_marks():
    call = '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]'
    text = f"<|START_THINKING|>hm<|END_THINKING|>{call}<|END_ACTION|>"
    said = say(list(text), marks="cohere", calls="cohere", tools=TOOLS)
    assert said == [R("hm"), CallBegan(0, "f"), CallArguments(0, "{}"), CallEnded(0)]
    text = "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>"
    said = say(list(text), marks="cohere", calls="cohere", tools=TOOLS)
    assert said == [R("hm"), T("Yes.", text.index("Yes"))]


@pytest.mark.parametrize("form", SAMPLES)
def test_every_sample_may_follow_thinking(form):
    lead = "<think>hm\n</think>"
    for sample in SAMPLES[form]:
        if not sample.text.strip():
            continue
        said = say([lead + sample.text], calls=form, tools=TOOLS, is_cut=sample.is_cut)
        whole = lead + sample.text
        for part in said:
            if isinstance(part, Text):
                assert whole[part.at : part.at + len(part.text)] == part.text
        expected = [part.lstrip() if isinstance(part, str) else part for part in sample.parts]
        assert gathered(said) == [R("hm"), *expected]


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_a_prompt_that_opens_thinking_is_seen(prompt, is_open):
    assert SpeechForm(MARKS["think"], None).opens_thinking(prompt) is is_open
    assert SpeechForm(MARKS["always_think"], None).opens_thinking(prompt)
    assert not SpeechForm(None, None).opens_thinking(prompt)


def test_kept_tokens_are_those_of_both_parts():
    form = SpeechForm(MARKS["gemma"], call_formats()["hermes"])
    assert {"<|channel>", "<channel|>", "<tool_call>", "</tool_call>"} <= form.kept
    assert "<tool_call>" not in form.without_calls().kept
    assert form.without_calls().kept == SpeechForm(MARKS["gemma"], None).kept
    assert SpeechForm(None, None).kept == frozenset()
