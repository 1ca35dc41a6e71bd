"""On a GPU: what comes back in each way, for every architecture in float32 and bfloat16.

A control says first whether two runs without a cache agree at all. Where they do, restored state
must give the logits of live state bit for bit; or, where a kernel is chosen by how much room a
buffer has, those of live state that was moved into buffers of a restored one's size. One row a
cell goes as JSON to stdout, or to the file that OMLX_GPU_TABLE names. On a machine without a GPU
it runs if OMLX_GPU_ON_CPU is set.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests import exact
from tests.exact import ARCHITECTURES, INTERVAL, NOTHING, REPLY, WAYS, WINDOW, Case, Difference
from tests.fakes.harness import Answer

pytestmark = pytest.mark.gpu

TABLE = os.environ.get("OMLX_GPU_TABLE")
ON_CPU = bool(os.environ.get("OMLX_GPU_ON_CPU"))
DTYPES = {"fp32": mx.float32, "bf16": mx.bfloat16}
CASES = [
    Case(INTERVAL + 16, is_repeat=True),
    Case(WINDOW + 1, is_repeat=False),
    Case(INTERVAL + 1, is_repeat=False),
]


@dataclass
class Table:
    """What was found; the file is written anew for each row, so that a fault leaves the others."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """One more row (mutates)."""
        self.rows.append(row)
        if TABLE:
            Path(TABLE).write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        else:
            print(json.dumps(row))


@pytest.fixture(scope="module")
def table() -> Table:
    """One for the whole run."""
    return Table()


@dataclass
class Cell:
    """One architecture, type and way: `to_live` and `to_moved` are differences of restored state,
    `num_missed` counts requests for which not all was found."""

    to_live: Difference = NOTHING
    to_moved: Difference = NOTHING
    num_missed: int = 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_restored_is_live(name: str, dtype: str, tmp_path: Path, table: Table) -> None:
    assert ON_CPU or mx.default_device().type is mx.DeviceType.gpu, "set OMLX_GPU_ON_CPU"
    model, experts = build(name, DTYPES[dtype])
    one, two = cold_runs(model, tmp_path), cold_runs(model, tmp_path)
    pairs = zip(one, two, strict=True)
    control = sum((exact.difference(a.logits, b.logits) for a, b in pairs), NOTHING)
    cells = {way: compare(model, way, tmp_path / way) for way in WAYS}
    for way, cell in cells.items():
        table.add(
            {
                "architecture": name,
                "dtype": dtype,
                "way": way,
                "is_equal": cell.to_live.is_none,
                "is_equal_moved": cell.to_moved.is_none,
                "largest": cell.to_live.largest,
                "control": control.largest,
                "details": asdict(cell),
                "experts": experts,
                "device": str(mx.default_device()),
            }
        )
    assert not any(cell.num_missed for cell in cells.values()), cells
    assert not control.is_none or all(cell.to_moved.is_none for cell in cells.values()), cells


def build(name: str, dtype: mx.Dtype) -> tuple[Any, str]:
    """The model, with packed experts if this device can't multiply plain ones of that type."""
    try:
        return exact.build(name, dtype), "plain"
    except RuntimeError:
        assert name in exact.EXPERTS
        return exact.build(name, dtype, experts_bits=8), "packed"


def cold_runs(model: Any, folder: Path) -> list[Answer]:
    """The first requests without a cache."""
    engine = exact.start(model, folder, cache_enabled=False)
    answers = [engine.ask(case.prompt, REPLY) for case in CASES]
    engine.stop()
    return answers


def compare(model: Any, way: str, folder: Path) -> Cell:
    """A repeat has the engine's own first run as the live one, a conversation one live cache."""
    cell = Cell()
    for back in exact.come_back(way, model, folder, CASES):
        case, found, reply = back.case, back.second.logits, back.first.tokens
        cell.num_missed += back.second.cached != case.num_restored
        if case.is_repeat:
            to_live = exact.difference(found, back.first.logits)
        else:
            to_live = exact.difference(found, exact.live(model, case, reply=reply).second)
        cell.to_live += to_live
        if not to_live.is_none:
            moved = exact.live(model, case, reply=reply, moves=True).second
            cell.to_moved += exact.difference(found, moved)
    return cell
