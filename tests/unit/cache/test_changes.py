"""One word for what happened to a text."""

import pytest

from omlx.cache.changes import Change, classify

TEXT = "You are careful.\nToday is 2026-01-01.\nBe brief.\nNever guess.\n"


@pytest.mark.parametrize(
    ("new", "change"),
    [
        (TEXT.replace("01-01", "01-02"), Change.VALUE),
        (TEXT.replace("careful", "reckless"), Change.VALUE),
        (TEXT.replace("Be brief.\n", "Use tools.\nBe brief.\n"), Change.INSERTED),
        ("First of all:\n" + TEXT, Change.INSERTED),
        (TEXT + "And smile.\n", Change.INSERTED),
        (TEXT.replace("careful", "very careful"), Change.INSERTED),
        (TEXT.replace("Today is 2026-01-01.\n", ""), Change.REMOVED),
        (TEXT.replace("Never guess.\n", ""), Change.REMOVED),
        (TEXT.replace("Never ", ""), Change.REMOVED),
        ("You are careful.\nBe brief.\nToday is 2026-01-01.\nNever guess.\n", Change.ORDER),
        ("Never guess.\nToday is 2026-01-01.\nBe brief.\nYou are careful.\n", Change.ORDER),
        ("Something else entirely", Change.VALUE),
    ],
)
def test_lines_and_words(new: str, change: Change) -> None:
    assert classify(TEXT, new) is change


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', Change.ORDER),
        ('{"a": 1, "b": 2, "c": 3}', '{"c": 3, "a": 1, "b": 2}', Change.ORDER),
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 3}', Change.VALUE),
        ('{"a": 1, "b": 2}', '{"a": 1, "x": 9, "b": 2}', Change.INSERTED),
        ('{"a": 1, "x": 9, "b": 2}', '{"a": 1, "b": 2}', Change.REMOVED),
        ("", "x", Change.INSERTED),
        ("x", "", Change.REMOVED),
        ("a  b", "a b", Change.VALUE),
        ("same", "same", Change.VALUE),
    ],
)
def test_one_line(old: str, new: str, change: Change) -> None:
    assert classify(old, new) is change


def test_long_texts_take_no_time() -> None:
    old = "\n".join(f"line {i} of the text" for i in range(20_000))
    assert classify(old, old.replace("line 7 ", "line 8 ")) is Change.VALUE
