"""Trace files: those of the data set are read, and what is wrong in others is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.bench.failure import BenchError
from omlx.bench.trace import common_length, find_traces, load_trace

TRACES = Path(__file__).resolve().parents[2] / "data" / "traces"


def written(folder: Path, tree: Any) -> Path:
    path = folder / "one.json"
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return path


def trace(**changes: Any) -> dict[str, Any]:
    requests = [
        {"t": 0.0, "in": 130, "out": 5, "blocks": [[1, 2]]},
        {"t": 2.5, "in": 200, "out": 5, "blocks": [[1, 2], [4, 4]]},
    ]
    return {"id": "a", "block_size": 64, "requests": requests, **changes}


def request(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"t": 0.0, "in": 130, "out": 5, "blocks": [[1, 2]], **changes}
    return trace(requests=[{name: value for name, value in row.items() if value is not ...}])


def test_all_traces_of_the_data_set_are_read() -> None:
    files = find_traces([TRACES])
    assert len(files) == 24
    for path in files:
        raw, found = json.loads(path.read_text()), load_trace(path)
        assert found.name == path.stem
        assert [r.num_prompt for r in found.requests] == [r["in"] for r in raw["requests"]]
        assert found.num_head == raw["tool_tokens"] + raw["system_tokens"]
        assert found.requests[0].ids[:2] == tuple(range(raw["requests"][0]["blocks"][0][0], 3))


def test_a_trace(tmp_path: Path) -> None:
    found = load_trace(written(tmp_path, trace()))
    assert (found.name, found.id_tokens, found.num_head) == ("a", 64, 0)
    assert found.requests[1].ids == (1, 2, 4)
    assert (found.requests[1].at_s, found.most_tokens) == (2.5, 205)


def test_files_and_folders_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "note.txt"):
        (tmp_path / name).write_text("{}")
    other = tmp_path / "note.txt"
    assert [path.name for path in find_traces([other, tmp_path])] == [
        "note.txt",
        "a.json",
        "b.json",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchError, match="has no trace files"):
        find_traces([tmp_path / "empty"])


FAULTS: dict[str, tuple[Any, str]] = {
    "text": ("not JSON", "is not valid JSON"),
    "deep": ("[" * 100_000, "is not valid JSON"),
    "list": ([], r"the file is \[\], but must be an object"),
    "no size": (trace(block_size=...), ""),
    "size": (trace(block_size=0), "block_size is 0, but must be a whole number from 1"),
    "size text": (trace(block_size="64"), 'block_size is "64"'),
    "head": (trace(tool_tokens=-1), "tool_tokens is -1"),
    "no requests": (trace(requests=[]), r"requests is \[\]"),
    "requests": (trace(requests={"a": 1}), "requests is"),
    "row": (trace(requests=[3]), r"requests\[0\] is 3, but must be an object"),
    "no in": (request(**{"in": ...}), r"requests\[0\]\.in is missing"),
    "in": (request(**{"in": 0}), r"requests\[0\]\.in is 0"),
    "in bool": (request(**{"in": True}), r"requests\[0\]\.in is true"),
    "in huge": (request(**{"in": 10**9}), r"requests\[0\]\.in is 1000000000"),
    "out": (request(out=1.5), r"requests\[0\]\.out is 1.5"),
    "t": (request(t="now"), r"requests\[0\]\.t is \"now\""),
    "t below 0": (request(t=-1), r"requests\[0\]\.t is -1"),
    "t infinite": (
        '{"block_size": 64, "requests": [{"t": 1e999, "in": 5, "out": 1, "blocks": []}]}',
        r"requests\[0\]\.t is Infinity",
    ),
    "blocks": (request(blocks="all"), r"requests\[0\]\.blocks is \"all\""),
    "range": (request(blocks=[[2, 1]]), r"requests\[0\]\.blocks\[0\] is \[2, 1\]"),
    "pair": (request(blocks=[[1]]), r"requests\[0\]\.blocks\[0\] is \[1\]"),
    "too many": (request(blocks=[[1, 10**12]]), r"requests\[0\]\.blocks has more runs"),
    "backwards": (
        trace(requests=[*reversed(trace()["requests"])]),
        r"requests\[1\]\.t comes before",
    ),
}
FAULTS["no size"] = ({"requests": trace()["requests"]}, "block_size is missing")


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    tree, message = FAULTS[name]
    path = written(tmp_path, tree)
    with pytest.raises(BenchError, match=message) as caught:
        load_trace(path)
    assert str(path) in caught.value.message
    assert len(caught.value.message) < 400
    assert "docs/guide/bench-agents.md" in caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="can't be read: No such file"):
        load_trace(tmp_path / "none.json")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(64_000_001)
    with pytest.raises(BenchError, match="is larger than"):
        load_trace(huge)


def test_a_name_that_a_terminal_would_obey_is_not_taken(tmp_path: Path) -> None:
    assert load_trace(written(tmp_path, trace(id="\x1b[31m"))).name == "one"
    assert load_trace(written(tmp_path, trace(id=7))).name == "one"


def test_common_length() -> None:
    assert common_length((1, 2, 3), (1, 2, 4, 5)) == 2
    assert common_length((), (1,)) == 0
    assert common_length((1, 2), (1, 2)) == 2
