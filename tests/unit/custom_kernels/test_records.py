"""Verdicts in their file: what is read back, and what counts as no verdict."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from omlx.custom_kernels.records import Record, Verdict, find, read_records, write_record
from omlx.errors import OmlxError

RECORD = Record(
    "qmm_small", "cuda", "GPU", "0.32.4", "ab12", Verdict.VERIFIED,
    num_cases=3, errors={"bfloat16": 0.004}, speedups={"1 row": 1.5},
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "kernels.json"


def test_what_is_written_is_read(path: Path) -> None:
    other = replace(RECORD, op="qk_rope", verdict=Verdict.FAILED, reason="NaN")
    write_record(path, RECORD)
    write_record(path, other)
    assert read_records(path) == (RECORD, other)
    assert [one.name for one in path.parent.iterdir()] == ["kernels.json"]


def test_a_newer_verdict_takes_the_place_of_the_older(path: Path) -> None:
    newer = replace(RECORD, digest="cd34", verdict=Verdict.FAILED, reason="wrong")
    write_record(path, RECORD)
    write_record(path, newer)
    assert read_records(path) == (newer,)


@pytest.mark.parametrize("field", ["op", "backend", "device", "mlx"])
def test_verdicts_of_other_devices_and_versions_stay(path: Path, field: str) -> None:
    other = replace(RECORD, **{field: "other"})
    write_record(path, RECORD)
    write_record(path, other)
    assert read_records(path) == (RECORD, other)
    assert find(read_records(path), RECORD.holds_for, "ab12") == RECORD


def test_a_verdict_is_found_for_its_source_only() -> None:
    assert find([RECORD], RECORD.holds_for, "ab12") == RECORD
    assert find([RECORD], RECORD.holds_for, "cd34") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"format": 2, "records": []}', b'{"records": 3}'],
)
def test_what_is_no_such_file_has_no_verdicts(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert read_records(path) == ()
    write_record(path, RECORD)
    assert read_records(path) == (RECORD,)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "fine"},
        {"verdict": None},
        {"speedups": [1, 2]},
        {"speedups": {"1 row": "fast"}},
        {"errors": None},
        {"digest": 3},
        {"num_cases": "many"},
        {"more": 1},
    ],
)
def test_a_record_of_another_form_is_no_verdict_and_the_others_are(
    path: Path, change: dict[str, Any]
) -> None:
    other = replace(RECORD, op="qk_rope")
    rows = [{**asdict(RECORD), **change}, "text", asdict(other)]
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 1, "records": rows}))
    assert read_records(path) == (other,)


def test_a_record_that_lacks_a_field_is_no_verdict(path: Path) -> None:
    row = asdict(RECORD)
    del row["digest"]
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 1, "records": [row]}))
    assert read_records(path) == ()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(OmlxError, match="can't write the verdicts on kernels"):
        write_record(tmp_path / "state" / "kernels.json", RECORD)
