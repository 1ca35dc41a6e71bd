"""Point 1: at every size ours is nearer to the original than what mlx-lm makes of as many bytes.

OMLX_BENCH_BITS, OMLX_BENCH_SEEDS and OMLX_BENCH_TOKENS cut the table; only a whole one is kept.
"""

import os
from collections import defaultdict
from typing import Any

from tests.acceptance.bench import run_bench
from tests.acceptance.conftest import Figure

# Read before the environment is cleaned for the test.
_CUT = {
    option: os.environ[name]
    for option, name in (
        ("--bits", "OMLX_BENCH_BITS"),
        ("--seeds", "OMLX_BENCH_SEEDS"),
        ("--tokens", "OMLX_BENCH_TOKENS"),
    )
    if name in os.environ
}
_LEAST = 2.55  # groups of 64 at least, since rows of 576 are no multiple of 128


def test_ours_is_nearer_at_the_same_size(figure: Figure) -> None:
    args = [text for pair in _CUT.items() for text in pair]
    document = run_bench("quantize.py", *args, kept_as=None if _CUT else "quantize.json")
    rows: list[dict[str, Any]] = document["rows"]
    worse: list[str] = []
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "error" in row:
            assert row["bits"] < _LEAST, row
            assert "less than this model can take" in row["error"]
            figure(f"{row['bits']} bits: {row['error']}")
            continue
        if "same_size_as" not in row:
            continue
        peer = next(
            r for r in rows
            if r["side"] == row["same_size_as"]
            and all(r[k] == row[k] for k in ("bits", "seed", "dithered"))
        )  # fmt: skip
        assert row["bytes"] <= peer["bytes"]
        ratios[f"{row['bits']} bits, {peer['side']}"].append(row["kl"] / peer["kl"])
        if row["kl"] >= peer["kl"]:
            worse.append(f"{row['bits']} bits, seed {row['seed']}: {peer['side']}")
    for name, found in ratios.items():
        figure(f"{name}: KL {min(found):.2f}–{max(found):.2f} of theirs")
    assert ratios
    assert not worse, worse
