"""A user's own questions are read, and every fault is said with its line and field."""

import json
from pathlib import Path

import pytest

from omlx.bench.items import Choice, Code, read_items
from omlx.errors import UsageError

CHOICE = {"kind": "choice", "question": "2 + 2 =", "choices": [" 4", " 5"], "answer": 0}
CODE = {"kind": "code", "prompt": "def f():\n", "tests": "assert f() == 1"}


def write(tmp_path: Path, *items: object) -> Path:
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in items))
    return path


def test_both_kinds_are_read(tmp_path: Path) -> None:
    code = {**CODE, "id": "f", "stop": ["\n\n"], "max_tokens": 9}
    found = read_items(write(tmp_path, CHOICE, "", code, CODE))
    assert found.choices == (Choice("line-1", "2 + 2 =", (" 4", " 5"), 0),)
    first, second = found.codes
    assert first == Code("f", "def f():\n", "assert f() == 1", ("\n\n",), 9)
    assert (second.id, second.max_tokens, "\ndef " in second.stop) == ("line-4", 256, True)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("{", "1: not JSON"),
        ("[" * 100_000, "1: not JSON"),
        ("[1]", "not a JSON object"),
        ({}, 'the field \'kind\' is missing; it should be "choice" or "code"'),
        ({**CHOICE, "kind": "essay"}, "'kind' is not \"choice\""),
        ({**CHOICE, "asnwer": 0}, "unknown field 'asnwer'"),
        ({**CHOICE, "question": ""}, "'question' is not a text that is not empty"),
        ({**CHOICE, "choices": [" 4"]}, "'choices' is not 2 to 64 texts"),
        ({**CHOICE, "choices": [" 4", ""]}, "'choices' is not 2 to 64 texts"),
        ({**CHOICE, "choices": " 4 5"}, "'choices' is not a list of texts"),
        ({**CHOICE, "choices": [" 4", 5]}, "'choices' is not a list of texts"),
        ({**CHOICE, "answer": 2}, "'answer' is not the index of a choice, 0 to 1"),
        ({**CHOICE, "answer": True}, "'answer' is not the index"),
        ({**CHOICE, "id": 7}, "'id' is not a text"),
        ({**CODE, "tests": None}, "'tests' is not a text"),
        ({**CODE, "max_tokens": 0}, "'max_tokens' is not a whole number from 1 to 4096"),
        ({**CODE, "stop": [""]}, "'stop' is not a list of texts that are not empty"),
        ({**CODE, "choices": []}, "unknown field 'choices'"),
    ],
)
def test_faults_are_said_with_their_field(tmp_path: Path, item: object, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_items(write(tmp_path, item))
    assert reason in caught.value.message
    assert caught.value.exit_code == 2


def test_the_line_of_a_fault_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"items\.jsonl:3: the id 'line-1' is there twice"):
        read_items(write(tmp_path, CHOICE, "", {**CODE, "id": "line-1"}))


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_items_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="has no items|not JSON"):
        read_items(path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read: No such file"):
        read_items(tmp_path / "none")
