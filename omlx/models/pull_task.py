"""A task of its own process: gets one model, from a hub or the demo, and tells how far it is.

Knows nothing about terminals or servers; what comes in and goes out is described in models/task.py.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.arch.known import Architectures
from omlx.models.demo import Progress, pull_demo
from omlx.models.destination import ModelFolder
from omlx.models.hub import Hub
from omlx.models.pull import parse_repo, pull
from omlx.models.task import OnProgress, run_as_main
from omlx.units import format_size

DEMO = "demo"


def pull_model(spec: Mapping[str, object], progress: OnProgress) -> dict[str, object]:
    """The folder of a model, fetched as far as it is missing.

    Keys of `spec`: model (as users write it), folder (that of models), ceiling_bytes (of weights
    that can be served here, or None). OmlxError says why it can't be had.
    """
    name, folder = str(spec["model"]), Path(str(spec["folder"]))

    def report(step: Progress) -> None:
        progress(step.done, step.total, step.stage.value)

    if name == DEMO:
        return {"path": str(pull_demo(folder, progress=report)), "fetched_bytes": None}
    architectures = Architectures.installed()

    def check_config(config: Mapping[str, object]) -> None:
        reason = architectures.why_not(config)
        if reason is not None:
            raise ModelError(reason)

    pulled = pull(
        parse_repo(name),
        ModelFolder(folder),
        hub=Hub(),
        progress=report,
        check_config=check_config,
        check_weights=lambda num_bytes: _check_size(num_bytes, spec.get("ceiling_bytes")),
    )
    return {"path": str(pulled.path), "fetched_bytes": pulled.fetched_bytes}


def _check_size(num_bytes: int, ceiling_bytes: object) -> None:
    """Refuse before gigabytes are fetched that this machine can't serve."""
    if isinstance(ceiling_bytes, int) and num_bytes > ceiling_bytes:
        raise ModelError(
            f"it has {format_size(num_bytes)} of weights, and engine.memory_limit allows "
            f"{format_size(ceiling_bytes)} on this machine",
            hint="take a smaller model or a smaller quantization",
        )


if __name__ == "__main__":
    sys.exit(run_as_main(pull_model))
