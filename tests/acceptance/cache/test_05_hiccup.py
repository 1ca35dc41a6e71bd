"""Point 5: cold prefill with the cache on >= 0.98 x off; the gaps between tokens at p99 <= 1.5 x
while 2 GB are written and while 2 GB are read."""

from pathlib import Path

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench


def test_prefill(demo: Path, figure: Figure) -> None:
    result = run_bench(
        "overhead.py", "--model", str(demo), "--prompt", "768", "--pairs", "10", "--rows"
    )
    prefill = result["prefill_cache_on_vs_off"]
    figure(
        f"cold prefill on/off {prefill['ratio']} [{prefill['low95']}, {prefill['high95']}], "
        f"our share of engine time {prefill['our_share_of_engine_time']:.1%}"
    )
    assert prefill["high95"] >= 0.98, prefill
    assert prefill["our_share_of_engine_time"] <= 0.02, prefill


def test_hiccup(figure: Figure) -> None:
    result = run_bench("hiccup.py", kept_as="hiccup.json")
    for kind in ("write", "read"):
        found, quiet = result[kind], result["quiet"]
        p99, lag = found["gap_p99"], found["loop_lag_p99"]
        figure(
            f"{kind}: gaps p50 {found['gaps']['p50_ms']} ms, p99 {found['gaps']['p99_ms']} ms, "
            f"max {found['gaps']['max_ms']} ms (quiet {quiet['gaps']['p50_ms']}, "
            f"{quiet['gaps']['p99_ms']}, {quiet['gaps']['max_ms']}); p99 ratio {p99['ratio']} "
            f"[{p99['low95']}, {p99['high95']}]; loop lag p99 {found['loop_lag']['p99_ms']} ms "
            f"(quiet {quiet['loop_lag']['p99_ms']}), ratio {lag['ratio']}; "
            f"{found['gb_per_s']} GB/s"
        )
    for kind in ("write", "read"):
        assert result[kind]["bytes_each"] >= 2e9, result[kind]
        assert result[kind]["gap_p99"]["low95"] <= 1.5, result[kind]["gap_p99"]
