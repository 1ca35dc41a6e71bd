"""Answers made of pieces at random: no error, whole JSON, and the same for every cut."""

import json
import random
import re

import pytest

from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Said, Text
from tests.unit.server.parse.samples_xml import CALLS, WRITERS
from tests.unit.server.parse.test_elements import FORMATS, run

WORDS = [
    " ",
    "\n",
    "a",
    "007",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "<",
    ">",
    "</",
    "'",
    "é",
    "👍",
]
WORDS += ["<![CDATA[", "]]>", "null", "write", "functions.write:0", "call:write{", "to=look"]


def pieces(name: str) -> list[str]:
    """What answers of a format are made of: its marks, keys, values and odd characters."""
    text = WRITERS[name]([*CALLS["two"], *CALLS["types"]])
    found = re.findall(r"<[^<>]*>|[^<>]+", text)
    return [*dict.fromkeys(found), *WORDS]


def check(said: list[Said], *, is_cut: bool) -> None:
    names: list[str] = []
    texts: list[str] = []
    is_open = False
    for one in said:
        match one:
            case CallBegan():
                assert one.index == len(names) and not is_open
                names.append(one.name)
                texts.append("")
                is_open = True
            case CallArguments():
                assert is_open and one.index == len(names) - 1 and one.text
                texts[-1] += one.text
            case CallEnded():
                assert is_open and isinstance(json.loads(texts[-1]), dict)
                is_open = False
            case _:
                assert not is_open and one.text
    assert all(names) and (is_cut or not is_open)


@pytest.mark.parametrize("name", FORMATS)
def test_answers_of_random_pieces(name: str) -> None:
    rng = random.Random(7)
    parts = pieces(name)
    for _ in range(250):
        text = "".join(rng.choices(parts, k=rng.randint(1, 14)))
        if rng.random() < 0.5:
            whole = WRITERS[name](CALLS[rng.choice(["one", "two", "object"])])
            at = rng.randrange(len(whole))
            text = whole[:at] + text + whole[at + rng.randint(0, 6) :]
        for is_cut in (False, True):
            said = run(FORMATS[name], [text], is_cut=is_cut)
            check(said, is_cut=is_cut)
            assert run(FORMATS[name], list(text), is_cut=is_cut) == said, text
            a, b = sorted(rng.choices(range(len(text) + 1), k=2))
            assert run(FORMATS[name], [text[:a], text[a:b], text[b:]], is_cut=is_cut) == said, text
            if name != "harmony":
                for one in said:
                    assert not isinstance(one, Text) or text[one.at] == one.text[0]


def test_deep_brackets_are_no_error() -> None:
    for name, head in (
        ("kimi_k2", "<|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"),
        ("harmony", "<|channel|>commentary to=functions.write<|message|>"),
        ("gemma", "<|tool_call>call:write"),
    ):
        for inner in ('{"a":' * 5_000, '{"a":' + "[" * 5_000, '{"a":' * 40 + "1" + "}" * 40):
            for is_cut in (False, True):
                check(run(FORMATS[name], [head + inner], is_cut=is_cut), is_cut=is_cut)
