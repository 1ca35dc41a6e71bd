"""How much memory the machine has, and how much of it is free to be used.

Knows nothing about engines or their limits.
"""

import psutil


def machine_memory() -> dict[str, int] | None:
    """Bytes of all memory and of what can be had without swapping; None if nobody says."""
    try:
        found = psutil.virtual_memory()
    except (psutil.Error, OSError, ValueError):
        return None
    return {"total_bytes": found.total, "available_bytes": found.available}
