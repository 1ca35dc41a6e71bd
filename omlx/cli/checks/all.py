"""All checks, in the order in which their findings are shown.

Knows nothing about what they do.
"""

from omlx.cli.checks import access, disk, machine, programs, software, wear
from omlx.cli.checks.finding import Check

CHECKS: tuple[Check, ...] = (
    *software.CHECKS,
    *machine.CHECKS,
    *disk.CHECKS,
    *wear.CHECKS,
    *access.CHECKS,
    *programs.CHECKS,
)
