"""Point 3: real traces through the cache: hits within a token of the ideal on every turn, bytes
written at most 1.05 x the unique ones."""

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import KEPT, run_bench

SIZES = [64, 128, 256, 512, 1024, 2048, 4096]


def test_traces(figure: Figure) -> None:
    result = run_bench("traces.py", "--out", str(KEPT))
    rows = {row["block_size"]: row for row in result["sizes"]}
    assert list(rows) == SIZES
    cases = result["cases_256"]
    for found in [row["tails"] for row in rows.values()] + list(cases.values()):
        assert found["max_excess"] <= 1, found
    assert cases["memory tier 0"]["disk_share_of_hits"] == 1.0
    for found in (rows[256]["tails"], *cases.values()):
        assert found["written_per_unique"] <= 1.05, found
    assert "| 4096 |" in (KEPT / "traces.md").read_text()
    ideal, with_tails, without = result["ideal"], rows[256]["tails"], rows[256]["no_tails"]
    figure(
        f"{result['turns']} turns: uncached mean / median {with_tails['mean']:,.0f} / "
        f"{with_tails['median']:,.0f} (ideal {ideal['mean']:,.0f} / {ideal['median']:,.0f}; "
        f"without tails {without['mean']:,.0f} / {without['median']:,.0f}); most beyond the "
        f"ideal {max(row['tails']['max_excess'] for row in rows.values())} tokens"
    )
    figure(
        f"written / unique at 256: {with_tails['written_per_unique']} by the traces' clock; "
        + ", ".join(f"{name} {found['written_per_unique']}" for name, found in cases.items())
    )
