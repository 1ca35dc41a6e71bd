"""Kernels as text and as JSON.

Knows nothing about how their verdicts came about.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omlx.cli.view.text import columns, harmless
from omlx.custom_kernels.records import KernelStatus


@dataclass(frozen=True, slots=True)
class Listing:
    """All kernels, and the GPU that they are for; None where mlx computes on the CPU."""

    device: str | None
    backend: str | None
    kernels: tuple[KernelStatus, ...]


def read_listing(told: Mapping[str, Any]) -> Listing:
    """What the process of kernels told."""
    kernels = tuple(KernelStatus(**one) for one in told["kernels"])
    return Listing(told["device"], told["backend"], kernels)


def to_json(listing: Listing, in_use: Mapping[str, Sequence[str]]) -> str:
    """All that is known, with the models that each kernel serves."""
    shown = [{**asdict(one), "models": list(in_use.get(one.name, ()))} for one in listing.kernels]
    whole = {"device": listing.device, "backend": listing.backend, "kernels": shown}
    return json.dumps(whole, indent=2)


def to_text(listing: Listing, in_use: Mapping[str, Sequence[str]]) -> str:
    """A line for each kernel, and below why some are not verified."""
    where = "none: mlx computes on the CPU here"
    if listing.device is not None:
        where = f"{harmless(listing.device)} ({listing.backend})"
    rows = [("kernel", "state", "speed-up", "models", "what it does")]
    for one in listing.kernels:
        models = ", ".join(harmless(name) for name in in_use.get(one.name, ())) or "-"
        rows.append((one.name, one.state, _speedups(one), models, one.summary))
    lines = [f"GPU: {where}", "", columns(rows)]
    reasons = [f"{one.name}: {harmless(one.reason)}" for one in listing.kernels if one.reason]
    if reasons and listing.device is not None:
        lines += ["", *reasons]
    undone = [one.name for one in listing.kernels if one.is_for_device and not one.is_verified]
    if undone:
        lines.append(f"to build them: omlx kernel build {' '.join(undone)}")
    return "\n".join(lines)


def _speedups(kernel: KernelStatus) -> str:
    """From the least to the largest."""
    if not kernel.speedups:
        return "-"
    least, most = min(kernel.speedups.values()), max(kernel.speedups.values())
    return f"{least:.2f} to {most:.2f}"
