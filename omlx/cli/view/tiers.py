"""Memory and the two tiers of a server, in short.

Knows nothing about colours or terminals.
"""

from omlx.cli.view.status import Status, Tier
from omlx.units import format_size


def tier_text(status: Status) -> list[tuple[str, str]]:
    """Label and text of each, for plain columns."""
    engines = format_size(_engine_bytes(status))
    machine = ""
    if status.machine_bytes:
        free, whole = format_size(status.available_bytes), format_size(status.machine_bytes)
        machine = f"; {free} of {whole} are free on the machine"
    rate = "" if status.hit_rate is None else f"; hit rate {status.hit_rate:.1%}"
    memory, disk = _tier(status.memory), _tier(status.disk)
    return [
        ("memory", f"engines {engines}{machine}"),
        ("cache", f"memory {memory}, disk {disk}{rate}"),
    ]


def tier_json(status: Status) -> dict[str, object]:
    """The same for machines; bytes."""
    return {
        "engine_bytes": _engine_bytes(status),
        "memory_bytes": status.memory.bytes,
        "memory_budget_bytes": status.memory.budget_bytes,
        "disk_bytes": status.disk.bytes,
        "disk_budget_bytes": status.disk.budget_bytes,
        "hit_rate": status.hit_rate,
    }


def _engine_bytes(status: Status) -> int:
    return sum(model.process.memory_bytes for model in status.models)


def _tier(tier: Tier) -> str:
    return f"{format_size(tier.bytes)} of {format_size(tier.budget_bytes)}"
