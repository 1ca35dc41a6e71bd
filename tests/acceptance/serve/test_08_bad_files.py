"""Point 8: a truncated, a bit-flipped, an empty and a foreign file in the store: each a miss, never
an error to the client, counted in `cache inspect`."""

import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import ask, words
from tests.live import Live, run_omlx


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "bit-flipped":
        path.write_bytes(data[:-100] + bytes([data[-100] ^ 4]) + data[-99:])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)


@pytest.mark.parametrize("how", ["truncated", "bit-flipped", "empty", "foreign"])
def test_a_bad_file_is_a_miss(tiny_model: Path, tmp_path: Path, how: str, figure: Figure) -> None:
    args = ("--model-dir", str(tiny_model.parent))
    text = words(700, 21)
    with Live(*args, home=tmp_path) as live:
        size, _, _ = ask(live, "tiny", text)
    blocks = {p.name.split(".")[0][:16]: p for p in tmp_path.rglob("*.256.safetensors")}
    (first,) = [p for p in blocks.values() if p.name.split(".")[1] not in blocks]
    (second,) = [p for p in blocks.values() if p.name.split(".")[1] == first.name[:16]]
    spoil(second, how)
    with Live(*args, home=tmp_path) as live:
        size2, cached, _ = ask(live, "tiny", text)
        inspected = run_omlx("cache", "inspect", "--json", home=tmp_path)
        assert inspected.returncode == 0, inspected.stderr
        (report,) = json.loads(inspected.stdout)["models"]
        _, again, _ = ask(live, "tiny", text)
    assert size2 == size
    assert cached == 256, "the good prefix is kept"
    assert again == size - 1, "what was lost is computed and kept again"
    bad = {**report["disk"]["bad"], **report["dropped_bad"]}
    assert sum(bad.values()) == 1, report
    figure(f"{how}: 256 of {size} from disk, then {again} cached; inspect counts {bad}")


def test_bad_files_are_counted_without_a_server(
    tiny_model: Path, tmp_path: Path, figure: Figure
) -> None:
    with Live("--model-dir", str(tiny_model.parent), home=tmp_path) as live:
        ask(live, "tiny", words(1200, 22))
    files = sorted(tmp_path.rglob("*.256.safetensors"))
    for path, how in zip(files, ("truncated", "empty", "foreign"), strict=False):
        spoil(path, how)
    report = json.loads(run_omlx("cache", "inspect", "--json", home=tmp_path).stdout)
    bad = report["models"][0]["disk"]["bad"]
    assert sum(bad.values()) == 3, report
    figure(f"without a server: {bad}")
