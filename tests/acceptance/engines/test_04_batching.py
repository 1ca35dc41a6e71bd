"""Point 4: decode of 8 and 2 rows against batch_generate, of 2 against 1, and prompts that come
together against prompts in a row; measured here on the CPU, and on an H200 with an 8B shape.

The GPU is not part of this machine: `scripts/gpu WHEELS python3 scripts/bench/batching.py` measured
there; docs/bench/h200-batching.json is judged here.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import KEPT, run_bench

LEAST = 0.95


@pytest.fixture(scope="module")
def cpu(demo: Path) -> Any:
    """The bench with the demo model, run now."""
    words = ["--rounds", "10", "--decode", "32", "--lengths", "128", "256", "--warm-ups", "1"]
    return run_bench("batching.py", "--model", str(demo), *words, kept_as="batching-cpu.json")


@pytest.fixture(scope="module")
def h200() -> Any:
    result = json.loads((KEPT / "h200-batching.json").read_text())
    assert "H200" in result["machine"]["device"]
    return result


def shown(entry: Any) -> str:
    return (
        f"{entry['ratio']} [{entry['low95']}, {entry['high95']}], "
        f"control {entry['control']['ratio']}"
    )


@pytest.mark.parametrize("rows", [8, 2])
@pytest.mark.parametrize("where", ["cpu", "h200"])
def test_decode_against_the_library(
    where: str, rows: int, request: pytest.FixtureRequest, figure: Figure
) -> None:
    (entry,) = [e for e in request.getfixturevalue(where)["decode_vs_library"] if e["rows"] == rows]
    figure(f"{where}: decode of {rows} rows against batch_generate: {shown(entry)}")
    assert entry["ratio"] >= LEAST


@pytest.mark.parametrize("where", ["cpu", "h200"])
def test_two_rows_against_one(where: str, request: pytest.FixtureRequest, figure: Figure) -> None:
    (entry,) = request.getfixturevalue(where)["decode_vs_one"]
    figure(f"{where}: decode of 2 rows against 1: {shown(entry)}")
    assert entry["low95"] >= 1


@pytest.mark.parametrize("where", ["cpu", "h200"])
def test_prompts_together_against_in_a_row(
    where: str, request: pytest.FixtureRequest, figure: Figure
) -> None:
    entries = request.getfixturevalue(where)["prefill_vs_one"]
    assert {entry["prompts"] for entry in entries} == {2, 4}
    for entry in entries:
        figure(
            f"{where}: prefill of {entry['prompts']} prompts of {entry['tokens']} tokens at once "
            f"against in a row: {shown(entry)}"
        )
    assert min(entry["ratio"] for entry in entries) >= LEAST
