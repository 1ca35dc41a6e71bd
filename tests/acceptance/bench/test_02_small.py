"""Point 2, what can be seen without a GPU: its script runs, on small models of the same families.

Figures of this machine are no figures of an H200 and are not kept.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.acceptance.bench.test_02_h200 import median
from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY


def test_the_script_measures_small_shapes(tmp_path: Path, demo: Path, figure: Figure) -> None:
    out = tmp_path / "small.json"
    command = [
        sys.executable, str(REPOSITORY / "scripts" / "bench" / "gpu_compare.py"), str(demo),
        "--out", str(out), "--parts", "4bit,hybrid", "--total", "300", "--tiny",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=900, stdout=subprocess.DEVNULL)
    parts = json.loads(out.read_text())["parts"]
    for name, part in parts.items():
        assert all(check["passed"] for check in part["checks"]), f"{name}: {part['checks']}"
    hybrid, dense = parts["hybrid"], parts["4bit"]
    assert median(dense, "omlx", "again", "uncached") == 1
    assert median(dense, "omlx", "restart", "uncached") < 64
    swapped = {side: median(hybrid, side, "swapped", "uncached") for side in ("omlx", "mlx-lm")}
    assert swapped["omlx"] < swapped["mlx-lm"] / 4, "tools in another order still hit"
    figure(f"small hybrid, tools swapped: uncached {swapped}")
