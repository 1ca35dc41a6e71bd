"""Verdicts on kernels, in state/kernels.json of OMLX_HOME, and how a kernel stands by them.

A verdict holds for one source, device and version of mlx. What can't be read, or is not of this
form, is no verdict: the kernel is then verified again. Knows nothing of mlx or of kernels.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from omlx.errors import OmlxError
from omlx.settings.replacing import replace_text

_FORMAT = 1
_TEXTS = ("op", "backend", "device", "mlx", "digest")


NOT_BUILT = "not built"
NO_KERNEL = "no kernel here"


class Verdict(StrEnum):
    """What came of a verification."""

    VERIFIED = "verified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Record:
    """The verdict on one kernel; `speedups` are by shape class, `reason` says why it failed.

    `errors` are the largest by type, of |error| against |exact| plus the root mean square.
    """

    op: str
    backend: str
    device: str
    mlx: str
    digest: str
    verdict: Verdict
    reason: str = ""
    num_cases: int = 0
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    speedups: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def holds_for(self) -> tuple[str, str, str, str]:
        """What a newer verdict replaces this one for."""
        return (self.op, self.backend, self.device, self.mlx)


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """One kernel: `state` is "verified", "failed", "not built" (or the verdict is on another
    source, device or version of mlx) or "no kernel here"; `reason` says why it is not verified.

    `speedups` are by shape class; where one is not above 1, plain mlx is used.
    """

    name: str
    summary: str
    device: str | None
    state: str
    reason: str = ""
    num_cases: int = 0
    errors: dict[str, float] = field(default_factory=dict[str, float])
    speedups: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def is_verified(self) -> bool:
        """Whether it may be used."""
        return self.state == Verdict.VERIFIED

    @property
    def is_for_device(self) -> bool:
        """Whether it can be built here."""
        return self.state != NO_KERNEL

    @property
    def is_faster(self) -> bool:
        """Whether it is used for any shape at all."""
        return any(speedup > 1.0 for speedup in self.speedups.values())


def read_records(path: Path) -> tuple[Record, ...]:
    """The verdicts in a file; none where it is missing, corrupt or of another form."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    if not isinstance(content, dict):
        return ()
    fields = cast(dict[str, object], content)
    rows = fields.get("records")
    if fields.get("format") != _FORMAT or not isinstance(rows, list):
        return ()
    found = (_record(row) for row in cast(list[object], rows))
    return tuple(one for one in found if one is not None)


def _record(row: object) -> Record | None:
    if not isinstance(row, dict):
        return None
    fields = cast(dict[str, Any], row)
    known = all(isinstance(fields.get(name, ""), str) for name in (*_TEXTS, "reason"))
    is_whole = known and isinstance(fields.get("num_cases", 0), int)
    if not is_whole or not all(_numbers(fields.get(name, {})) for name in ("errors", "speedups")):
        return None
    try:
        changed: dict[str, Any] = {**fields, "verdict": Verdict(fields["verdict"])}
        return Record(**changed)
    except (TypeError, ValueError, KeyError):
        return None


def _numbers(values: object) -> bool:
    return isinstance(values, dict) and all(
        isinstance(number, int | float) for number in cast(dict[str, object], values).values()
    )


def write_record(path: Path, record: Record) -> None:
    """Add a verdict, in place of an older one; the file is whole at any time. OmlxError."""
    kept = [one for one in read_records(path) if one.holds_for != record.holds_for]
    content = {"format": _FORMAT, "records": [asdict(one) for one in [*kept, record]]}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(path, json.dumps(content, indent=1))
    except OSError as error:
        raise OmlxError(
            f"can't write the verdicts on kernels to {path}: {error.strerror or error}",
            hint="check the folder's permissions and free space; OMLX_HOME moves it",
        ) from error


def find(
    records: Sequence[Record], holds_for: tuple[str, str, str, str], digest: str
) -> Record | None:
    """The verdict on exactly this kernel, if there is one."""
    return next((r for r in records if r.holds_for == holds_for and r.digest == digest), None)
