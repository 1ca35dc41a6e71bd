"""Models as a table and as JSON.

Knows nothing about how they were found.
"""

import json

from omlx.cli.view.text import columns
from omlx.models.locate import Discovery, ModelEntry
from omlx.units import format_size

_HEADER = ("model", "type", "window", "weights", "size", "folder")


def list_text(found: Discovery) -> str:
    """One line a model; folders come last and are never cut."""
    return columns([_HEADER, *(_row(entry) for entry in found.models)], right=(2, 4))


def _row(entry: ModelEntry) -> tuple[str, ...]:
    return (
        entry.id,
        entry.model_type,
        "-" if entry.context_window is None else f"{entry.context_window:,}",
        entry.quantization or entry.dtype or "-",
        format_size(entry.weight_bytes),
        str(entry.path),
    )


def list_json(found: Discovery) -> str:
    """The models, and the folders that were skipped."""
    whole = {
        "models": [
            {
                "id": entry.id,
                "path": str(entry.path),
                "model_type": entry.model_type,
                "context_window": entry.context_window,
                "weight_bytes": entry.weight_bytes,
                "dtype": entry.dtype,
                "quantization": entry.quantization,
            }
            for entry in found.models
        ],
        "skipped": [
            {"path": str(problem.path), "reason": problem.reason} for problem in found.problems
        ],
    }
    return json.dumps(whole, indent=2)
