"""Reading a log and what it was rotated into, and going on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from omlx.cli.follow import Follower, wanted

Follow = Callable[..., Follower]
STAMP = "2026-11-30T12:00:00.000"


def lines(model: str | None, *text: str) -> list[str]:
    test = wanted(model)()
    return [line for line in text if test(line)]


def rotate(path: Path) -> None:
    for number in range(9, 0, -1):
        old = path.with_name(f"{path.name}.{number}")
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.log"


@pytest.fixture
def follow(path: Path) -> Iterator[Callable[..., Follower]]:
    """Makes readers of the log, closed at the end."""
    with ExitStack() as stack:
        yield lambda model=None: stack.enter_context(closing(Follower(path, wanted(model))))


def test_the_last_lines_come_from_old_files_as_well(path: Path, follow: Follow) -> None:
    append(path, "1\n2\n")
    rotate(path)
    append(path, "3\n")
    rotate(path)
    append(path, "4\n5")
    follower = follow()
    assert follower.last(4, is_all=True) == ["2", "3", "4", "5"]
    assert follower.last(100) == ["1", "2", "3", "4"]
    assert follower.last(0) == []
    append(path, " and on\n")
    assert follower.more() == ["5 and on"]


def test_it_goes_on_over_rotations(path: Path, follow: Follow) -> None:
    append(path, "1\n")
    follower = follow()
    assert follower.last(10) == ["1"]
    append(path, "2\n")
    rotate(path)
    assert follower.more() == ["2"]
    append(path, "3\n")
    rotate(path)
    append(path, "4\n")
    rotate(path)  # twice since it looked
    append(path, "5\n")
    assert follower.more() == ["3", "4", "5"]
    append(path.with_name("a.log.1"), "late, by an engine\n")
    append(path, "6\n")
    assert sorted(follower.more()) == ["6", "late, by an engine"]
    assert follower.more() == []


def test_a_log_that_is_not_there_yet_or_emptied(path: Path, follow: Follow) -> None:
    follower = follow()
    assert follower.last(10) == [] and follower.more() == []
    append(path, "a long line, first\n")
    assert follower.more() == ["a long line, first"]
    path.write_text("new\n")
    assert follower.more() == ["new"]


def test_what_is_written_while_a_new_file_is_found_comes_before_it(path: Path) -> None:
    class Late(Follower):
        def _newer(self) -> list[tuple[Path, tuple[int, int]]]:
            append(path.with_name("a.log.1"), "late\n")
            return super()._newer()

    append(path, "1\n")
    with closing(Late(path, wanted(None))) as follower:
        follower.last(10)
        rotate(path)
        append(path, "new\n")
        assert follower.more() == ["late", "new"]


def test_a_rotation_while_the_last_lines_are_read(path: Path) -> None:
    class Late(Follower):
        is_done = False

        def _open(self, which: Path):  # type: ignore[no-untyped-def]
            if which == path and not self.is_done:
                self.is_done = True
                rotate(path)
                append(path, "3\n")
            return super()._open(which)

    append(path, "1\n")
    rotate(path)
    append(path, "2\n")
    with closing(Late(path, wanted(None))) as follower:
        assert follower.last(10) == ["1", "2", "3"]


def test_bytes_that_are_no_text(path: Path, follow: Follow) -> None:
    path.write_bytes(b"\xff\xfe\x00\n" + b"x" * 3_000_000 + b"\n")
    found = follow().last(2)
    assert [len(line) for line in found] == [3, 3_000_000]


def test_lines_of_a_model() -> None:
    text = (
        f"{STAMP} INFO omlx.engine [qwen] loaded",
        f"{STAMP} ERROR omlx.engine [qwen] broke",
        "Traceback (most recent call last):",
        "  File x",
        f"{STAMP} INFO omlx.engine [qwen-vl] loaded",
        "its own",
        f"{STAMP} INFO omlx.server req_1 qwen stop: 5 prompt tokens",
        f"{STAMP} INFO omlx.server req_2 qwen-vl stop: 5 prompt tokens",
        f"{STAMP} WARNING omlx.server qwen: its tokenizer",
    )
    assert lines(None, *text) == list(text)
    assert lines("qwen", *text) == [*text[:4], text[6], text[8]]
    assert lines("qwen-vl", *text) == [text[4], text[5], text[7]]
    assert lines("q.*", *text) == []


def test_lines_of_a_model_over_a_rotation(path: Path, follow: Follow) -> None:
    append(path, f"{STAMP} INFO omlx.engine [a] one\n{STAMP} INFO omlx.engine [b] two\n")
    follower = follow("a")
    assert len(follower.last(10)) == 1
    rotate(path)
    append(path, f"{STAMP} INFO omlx.engine [b] three\n{STAMP} INFO omlx.engine [a] four\nmore\n")
    assert [line.rpartition(" ")[2] for line in follower.more()] == ["four", "more"]
