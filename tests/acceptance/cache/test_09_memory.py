"""Point 9: a prefill of 131,072 tokens of mamba2 and falcon_h1 in chunks of 256: peak memory with
snapshots <= 1.05 x without."""

from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench

TOKENS = 131_072
NEVER = str(10**9)  # tokens between two snapshots: then there are those of the ends only
SIDES = {
    "off": ("--cache", "off"),
    "on, snapshots at the ends only": ("--interval", NEVER),
    "on": (),
    "on, memory tier 0": ("--memory", "0"),
}


@pytest.mark.parametrize("name", ["mamba2", "falcon_h1"])
def test_a_long_prefill(name: str, figure: Figure) -> None:
    """Each side in a process of its own.

    What counts is the most that arrays had in use at once. The memory tier's blocks are no part of
    what snapshots cost, so that the same cache without snapshots is the other side; with no memory
    tier it is no cache at all. The resident set is printed only: it holds buffers that mlx has
    freed and keeps, up to a share of the machine's memory, on both sides.
    """
    found = {
        side: run_bench("longprefill.py", "--model", name, "--tokens", str(TOKENS), *args)
        for side, args in SIDES.items()
    }
    for side, one in found.items():
        figure(
            f"{name}, cache {side}: peak {one['peak_bytes'] / 1e6:.2f} MB, resident "
            f"{one['peak_rss_bytes'] / 1e6:.0f} MB; {one['snapshot_files']} snapshots and "
            f"{one['block_files']} blocks on disk, {one['tier_bytes'] / 1e6:.2f} MB in the memory "
            f"tier; {one['seconds']:.0f} s"
        )
    with_tier = ratio(found["on"], found["on, snapshots at the ends only"])
    without_tier = ratio(found["on, memory tier 0"], found["off"])
    figure(
        f"{name}: with snapshots / without {with_tier:.4f}; without a memory tier, cache on / off "
        f"{without_tier:.4f}"
    )
    assert found["on"]["snapshot_files"] == found["on, memory tier 0"]["snapshot_files"] >= 16
    assert found["on, snapshots at the ends only"]["snapshot_files"] == 2
    assert with_tier <= 1.05
    assert without_tier <= 1.05


def ratio(one: Any, other: Any) -> float:
    """Of the most bytes that arrays had in use at once."""
    return one["peak_bytes"] / other["peak_bytes"]
