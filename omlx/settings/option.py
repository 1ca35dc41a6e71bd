"""What is known of one setting besides its type.

Knows nothing about which settings there are.
"""

from dataclasses import dataclass
from enum import Enum


class Unit(Enum):
    """What a number counts where it may be written with a unit."""

    SIZE = "size"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of a setting besides its type; an empty `flag` means `--<key>`."""

    help: str
    flag: str = ""
    unit: Unit | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    is_file: bool = False
    per_model: bool = False
