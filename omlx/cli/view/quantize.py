"""A quantization's plan as text and as JSON, and its progress as a bar with the time left.

Knows nothing about how it was made.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from omlx.cli.view.progress import EnteredProgress
from omlx.cli.view.text import columns
from omlx.units import format_size


def to_text(made: Mapping[str, Any], path: Path | None) -> str:
    """The formats by kind of matrix, with size and predicted KL; then the folder, if it is made."""
    plan = made["plan"]
    rows = [("matrices", "format", "size", "predicted KL")]
    rows += [
        (name, label, format_size(nbytes), f"{kl:.5f}")
        for name, label, nbytes, kl in made["groups"]
    ]
    kl = made["measured_kl"]
    measured = "" if kl is None else f"measured on the calibration text: KL {kl:.4f} nats a token"
    total = (
        f"{plan['bits']:.2f} bits a weight, {format_size(plan['nbytes'])}, "
        f"predicted KL {plan['predicted_kl']:.4f} nats a token, scales in {made['dtype']}"
    )
    parts = [columns(rows, right=(2, 3)), "", total, *([measured] if measured else [])]
    parts += [f"note: {note}" for note in plan["notes"]]
    if path is not None:
        parts.append(str(path))
    return "\n".join(parts)


def to_json(made: Mapping[str, Any], path: Path | None) -> str:
    """The same for machines, with the format of every matrix."""
    plan = made["plan"]
    whole = {
        "path": None if path is None else str(path),
        "bits": plan["bits"],
        "bytes": plan["nbytes"],
        "weights": made["num_values"],
        "predicted_kl": plan["predicted_kl"],
        "measured_kl": made["measured_kl"],
        "dtype": made["dtype"],
        "formats": plan["formats"],
        "notes": plan["notes"],
        "resumed": made["is_resumed"],
    }
    return json.dumps(whole, indent=2)


class TaskBar(EnteredProgress):
    """Shows a task's progress on stderr while it is entered; call it with each."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        super().__init__(
            TextColumn(title),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("")
        self._stage = ""

    def __call__(self, done: int, total: int, stage: str) -> None:
        """Move the bar (mutates); a stage of another length begins anew."""
        if stage != self._stage and done <= 1:
            self._progress.reset(self._task)
        self._stage = stage
        self._progress.update(self._task, completed=done, total=total, description=stage)
