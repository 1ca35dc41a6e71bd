"""Point 1: at every size ours is nearer to the original than what mlx-lm makes of as many bytes.

OMLX_BENCH_BITS, OMLX_BENCH_SEEDS and OMLX_BENCH_TOKENS cut the table; only a whole one is kept.
OMLX_BENCH_WORK names a folder to keep the pieces in, so that a run that was broken off goes on.
"""

import os
from collections import defaultdict
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench

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
_WORK = os.environ.get("OMLX_BENCH_WORK")
_LEAST = 2.5  # rows of 576 take groups of 64 at most, and 2.5 bits with them
_REPORTED_FROM = 6.0  # above five bits figures are reported only


@pytest.mark.timeout(7200)
def test_ours_is_nearer_at_the_same_size(figure: Figure) -> None:
    args = [text for pair in _CUT.items() for text in pair]
    args += ["--work", _WORK] if _WORK else []
    document = run_bench("quantize.py", *args, kept_as=None if _CUT else "quantize.json")
    rows: list[dict[str, Any]] = document["rows"]
    for row in rows:
        if "error" in row:
            assert row["bits"] < _LEAST, row
            assert "less than this model can take" in row["error"]
            figure(f"{row['bits']} bits: {row['error']}")
    ratios: dict[tuple[float, str], list[float]] = defaultdict(list)
    worse: list[str] = []
    for pair in document["pairs"]:
        bits = pair["bits"] or pair["theirs"]["bytes"] * 8 / 134_515_008
        ratios[bits, pair["peer"]].append(pair["ratio"])
        assert pair["ours"]["bytes"] <= pair["theirs"]["bytes"]
        if pair["ratio"] >= 1 and bits < _REPORTED_FROM:
            worse.append(f"{bits:.2f} bits, seed {pair['seed']}: {pair['peer']}")
    for (bits, peer), found in sorted(ratios.items()):
        figure(f"{bits:.2f} bits, {peer}: KL {min(found):.3f}–{max(found):.3f} of theirs")
    peers = {row["side"] for row in rows if row["side"] not in ("ours", "reference")}
    assert {peer for _, peer in ratios} == peers
    assert not worse, worse
