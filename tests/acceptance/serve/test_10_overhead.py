"""Point 10: cold prefill, cache on >= 0.97 x off; decode >= 0.97 x a bare BatchGenerator."""

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY


def test_overhead(demo: Path, figure: Figure) -> None:
    env = {**os.environ}
    library = ctypes.util.find_library("openblas")
    if library:
        env["LD_PRELOAD"] = library
    script = REPOSITORY / "scripts" / "bench" / "overhead.py"
    done = subprocess.run(
        [sys.executable, str(script), "--model", str(demo), "--prompt", "320", "--pairs", "10",
         "--decode", "16"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1])
    (REPOSITORY / "docs" / "bench" / "overhead-cpu.json").write_text(
        json.dumps(result, indent=1) + "\n"
    )
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
