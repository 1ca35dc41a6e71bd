"""A check of the disk tier as text, as JSON, and its progress as a bar.

Knows nothing about how it was made.
"""

import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from omlx.cli.view.progress import EnteredProgress
from omlx.cli.view.text import columns, count
from omlx.storage.check import Checked, CheckProgress
from omlx.units import format_size

_MAX_NAMED = 20


def verify_text(directory: Path, found: Checked, *, repair: bool) -> str:
    """What is good, what is bad by reason, and which files those are."""
    good = f"{count(found.num_blocks, 'block')}, {count(found.num_states, 'snapshot')}"
    rows = [("good", f"{good}, {format_size(found.num_bytes)}")]
    if found.bad:
        reasons = _by_reason(found).items()
        rows.append(("bad", ", ".join(f"{reason} {number}" for reason, number in reasons)))
    if repair and found.bad:
        rows.append(("removed", count(len(found.bad) - found.num_left, "bad file")))
    if found.num_stale_temps:
        done = f", {found.num_temps_removed:,} removed" if repair else ""
        rows.append(("left by writers", count(found.num_stale_temps, "file") + done))
    if found.num_other:
        rows.append(("other version", count(found.num_other, "file")))
    if found.num_busy:
        rows.append(("not opened", count(found.num_busy, "file")))
    parts = [f"cache in {directory}", columns(rows)]
    if found.bad:
        named = [(file.reason.value, file.place) for file in found.bad[:_MAX_NAMED]]
        more = len(found.bad) - len(named)
        parts.append(columns(named) + (f"\n{count(more, 'more file')}" if more else ""))
    return "\n\n".join(parts)


def verify_json(directory: Path, found: Checked, *, repair: bool) -> str:
    """The same for machines, with all bad files; places are below the cache folder."""
    whole = {
        "directory": str(directory),
        "repair": repair,
        "blocks": found.num_blocks,
        "snapshots": found.num_states,
        "bytes": found.num_bytes,
        "bad": _by_reason(found),
        "bad_files": [
            {"place": file.place, "reason": file.reason.value, "removed": file.is_removed}
            for file in found.bad
        ],
        "other_version": found.num_other,
        "not_opened": found.num_busy,
        "stale_temporary": {"files": found.num_stale_temps, "removed": found.num_temps_removed},
    }
    return json.dumps(whole, indent=2)


def _by_reason(found: Checked) -> dict[str, int]:
    return dict(sorted((reason.value, number) for reason, number in found.by_reason.items()))


class Bar(EnteredProgress):
    """Shows progress on stderr while it is entered; call it with each."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(
            TextColumn("verify"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("verify")

    def __call__(self, progress: CheckProgress) -> None:
        """Move the bar (mutates)."""
        done, total = progress.num_bytes, progress.num_bytes_total
        self._progress.update(self._task, completed=done, total=total)
