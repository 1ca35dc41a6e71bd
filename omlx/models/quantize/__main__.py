"""The process that quantizes: what comes in and goes out is described in models/task.py.

Knows nothing about terminals.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from omlx.models.quantize.plan import Goal
from omlx.models.quantize.run import Options, Quantization
from omlx.models.task import OnProgress, run_as_main


def quantize(spec: Mapping[str, object], progress: OnProgress) -> dict[str, object]:
    """Quantize as `spec` says (the fields of Options); the plan and what it was made by."""
    fields: dict[str, Any] = dict(spec)
    goal = Goal(**cast(dict[str, Any], fields.pop("goal")))
    for name in ("model", "out", "calibration"):
        if fields.get(name) is not None:
            fields[name] = Path(fields[name])
    made = Quantization(Options(goal=goal, **fields), progress).run()
    return asdict(made)


if __name__ == "__main__":
    sys.exit(run_as_main(quantize))
