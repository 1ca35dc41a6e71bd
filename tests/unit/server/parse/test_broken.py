"""Samples with random slips: the parts never depend on the cuts, and calls always parse."""

import random

import pytest

from omlx.server.parse.formats import call_formats
from omlx.server.parse.join import joined
from omlx.server.parse.reasoning import REASONING
from omlx.server.parse.said import Text
from omlx.server.parse.speech import Speech, SpeechForm
from tests.unit.server.parse.samples import SAMPLES, Call, gathered

FORMATS = call_formats()
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SLIPS = [
    "", "{", "}", "[", "]", '"', "'", ",", ":", "\\", "\\u", "\\ud83d", "\n", " ", "(", ")", "=",
    "<", ">", "null", "`", ";", '"name":', '"arguments":', "<tool_call>", "</tool_call>",
    "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>",
]  # fmt: skip


def say(form, pieces, *, is_cut):
    speech = Speech(SpeechForm(REASONING[0], FORMATS[form]), TOOLS)
    said = [part for piece in pieces for part in speech.add(piece)]
    return joined([*said, *speech.finish(is_cut=is_cut)])


def broken(text, chance):
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(text))
        end = start + chance.choice([0, 0, 1, 1, 2, 8])
        text = text[:start] + chance.choice(SLIPS) + text[end:]
    return text


@pytest.mark.parametrize("form", SAMPLES)
def test_case_k1_slips_never_raise_and_never_depend_on_the_cuts(form):
    chance = random.Random(form)
    for _ in range(120):
        text = broken(chance.choice(SAMPLES[form]).text, chance)
        is_cut = chance.random() < 0.4
        whole = say(form, [text], is_cut=is_cut)
        middle = chance.randint(0, len(text))
        for pieces in (list(text), [text[:middle], text[middle:]]):
            assert say(form, pieces, is_cut=is_cut) == whole, text
        for part in whole:
            if isinstance(part, Text):
                assert text[part.at : part.at + len(part.text)] == part.text
        for part in gathered(whole):
            if isinstance(part, Call):
                assert is_cut or part.is_ended
                assert not part.is_ended or type(part.arguments) is dict, text
