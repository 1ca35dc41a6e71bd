"""Writing the user's files and putting them back, where something goes wrong on the way."""

import json
from pathlib import Path

import pytest

from omlx.errors import OmlxError
from omlx.launch.plan import Edit
from omlx.launch.write import Writer


def edits(*paths: Path) -> list[Edit]:
    return [Edit(path, lambda text: text + "ours\n") for path in paths]


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "records")


def test_a_failure_in_the_middle_undoes_what_was_done(tmp_path: Path, writer: Writer) -> None:
    one, two, three = tmp_path / "new" / "one", tmp_path / "two", tmp_path / "three"
    two.write_text("two\n")
    three.write_text("three\n")
    changes = writer.prepare(edits(one, two, three))
    three.unlink()
    three.mkdir()  # what was a file is a folder now
    with pytest.raises(OmlxError, match="three cannot be written"):
        writer.write("mine", changes)
    assert two.read_text() == "two\n" and not one.parent.exists()
    with pytest.raises(OmlxError, match="nothing was written"):
        writer.restore("mine")
    assert not (tmp_path / "records" / "backup" / "mine").exists()


def test_a_second_write_restores_to_before_the_first(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "file"
    path.write_text("theirs\n")
    for _ in range(2):
        writer.write("mine", writer.prepare(edits(path)))
    assert path.read_text() == "theirs\nours\nours\n"
    assert writer.restore("mine") == [path]
    assert path.read_text() == "theirs\n"


def test_a_write_over_a_change_is_refused_unless_forced(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "file"
    path.write_text("theirs\n")
    writer.write("mine", writer.prepare(edits(path)))
    path.write_text("anew\n")
    with pytest.raises(OmlxError, match="was changed since"):
        writer.write("mine", writer.prepare(edits(path)))
    assert path.read_text() == "anew\n"
    writer.write("mine", writer.prepare(edits(path)), force=True)
    writer.restore("mine")
    assert path.read_text() == "anew\n"


def test_two_clients_have_records_of_their_own(tmp_path: Path, writer: Writer) -> None:
    for name in ("a", "b"):
        writer.write(name, writer.prepare(edits(tmp_path / f"{name}.txt")))
    writer.restore("a")
    assert not (tmp_path / "a.txt").exists() and (tmp_path / "b.txt").exists()


@pytest.mark.parametrize(
    "record",
    ["", "[]", "{}", '{"version": 2, "files": []}', '{"version": 1, "files": [{}]}',
     '{"version": 1, "files": [{"path": "/x", "target": "/x", "before": null, "after": "y",'
     ' "mode": 384, "backup": "../../../etc/passwd", "folders": []}]}', "[" * 10000],
)  # fmt: skip
def test_a_damaged_record_is_an_error(tmp_path: Path, writer: Writer, record: str) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "mine.json").write_text(record)
    with pytest.raises(OmlxError, match="is no record"):
        writer.restore("mine", force=True)


def test_a_damaged_backup_is_an_error_and_nothing_is_changed(
    tmp_path: Path, writer: Writer
) -> None:
    path = tmp_path / "file"
    path.write_text("theirs\n")
    writer.write("mine", writer.prepare(edits(path)))
    (backup,) = (tmp_path / "records" / "backup" / "mine").iterdir()
    backup.write_text("other\n")
    with pytest.raises(OmlxError, match="is damaged"):
        writer.restore("mine", force=True)
    assert path.read_text() == "theirs\nours\n"


def test_records_and_backups_are_private(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "file"
    path.write_text("a secret\n")
    writer.write("mine", writer.prepare(edits(path)))
    files = [file for file in (tmp_path / "records").rglob("*") if file.is_file()]
    assert len(files) == 2 and all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert "a secret" not in json.dumps(json.loads((tmp_path / "records/mine.json").read_text()))


def test_a_loop_of_links_is_an_error(tmp_path: Path, writer: Writer) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OmlxError):
        writer.write("mine", writer.prepare(edits(tmp_path / "a")))


def test_the_diff_is_shown_as_tools_do(tmp_path: Path, writer: Writer) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    (change,) = writer.prepare([Edit(path, lambda text: text + "\nours\n")])
    head = f"--- {path}\n+++ {path}\n@@ -1 +1,2 @@\n"
    assert change.diff == f"{head}-theirs\n\\ no newline at the end\n+theirs\n+ours\n"
