"""What is said, or refused, where a kernel that could serve is not verified on this device.

Knows nothing of why.
"""

import logging
from collections.abc import Mapping

from omlx.errors import ModelError

_log = logging.getLogger("omlx.kernels")


def demand(lacking: Mapping[str, str], device: str, *, is_required: bool) -> None:
    """Warn of kernels that are lacking, each with the reason, and say what fixes it; a ModelError
    where they are required. Nothing where none is lacking."""
    if not lacking:
        return
    reasons = "; ".join(f"{name}: {why}" for name, why in lacking.items())
    fix = f"omlx kernel build {' '.join(lacking)}"
    if is_required:
        raise ModelError(
            f"kernels that kernels.require asks for can't be used on {device}: {reasons}",
            hint=f"{fix}, or kernels.require = false",
        )
    _log.warning("slower than it could be on %s: %s; to fix it: %s", device, reasons, fix)
