"""Runs a script of scripts/bench for an acceptance point and keeps what it measured."""

import json
import os
import subprocess
import sys
from typing import Any

from omlx.engine.blas import preload_library, with_preload
from tests.live import REPOSITORY

KEPT = REPOSITORY / "docs" / "bench"


def run_bench(script: str, *args: str, kept_as: str | None = None) -> Any:
    """The JSON document that a bench prints last; it runs with the BLAS that an engine gets."""
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "bench" / script), *args],
        env=with_preload(os.environ, preload_library("auto")),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    if kept_as:
        (KEPT / kept_as).write_text(json.dumps(result, indent=1) + "\n")
    return result
