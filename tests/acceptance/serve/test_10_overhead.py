"""Point 10: cold prefill, cache on >= 0.97 x off; decode >= 0.97 x a bare BatchGenerator."""

from pathlib import Path

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench


def test_overhead(demo: Path, figure: Figure) -> None:
    words = ["--prompt", "320", "--pairs", "10", "--decode", "16"]
    result = run_bench("overhead.py", "--model", str(demo), *words, kept_as="overhead-cpu.json")
    prefill = result["prefill_cache_on_vs_off"]
    assert prefill["high95"] >= 0.97 and 1 - prefill["our_share_of_engine_time"] >= 0.97, prefill
    for decode in result["decode_vs_bare"]:
        assert decode["high95"] >= 0.97 and 1 - decode["our_share_of_engine_time"] >= 0.97, decode
    figure(
        f"prefill on/off {prefill['ratio']} [{prefill['low95']}, {prefill['high95']}], "
        f"our share {prefill['our_share_of_engine_time']:.1%}; decode "
        + ", ".join(
            f"{d['rows']} rows {d['ratio']} [{d['low95']}, {d['high95']}], "
            f"our share {d['our_share_of_engine_time']:.1%}"
            for d in result["decode_vs_bare"]
        )
    )
