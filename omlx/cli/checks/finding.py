"""What a check finds, and what it may ask of the machine.

Knows nothing about what is checked.
"""

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from omlx.launch.service.spec import Supervisor
from omlx.launch.service.tool import Tool, run_tool
from omlx.settings.build import Resolved


class Level(Enum):
    """How bad it is: only what is broken makes the exit code 1."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `fix` is what to do, and `repair` does it with --fix."""

    topic: str
    level: Level
    text: str
    fix: str = ""
    repair: Callable[[], str] | None = field(default=None, compare=False)

    def shown(self) -> dict[str, object]:
        """The finding as plain values."""
        return {
            "topic": self.topic,
            "level": self.level.value,
            "text": self.text,
            "fix": self.fix or None,
            "can_be_fixed_here": self.repair is not None,
        }


def ok(topic: str, text: str) -> Finding:
    """Nothing is wrong."""
    return Finding(topic, Level.OK, text)


def warning(topic: str, text: str, fix: str, repair: Callable[[], str] | None = None) -> Finding:
    """It works, and could be better or soon be worse."""
    return Finding(topic, Level.WARNING, text, fix, repair)


def broken(topic: str, text: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(topic, Level.BROKEN, text, fix)


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system that is mounted."""

    device: str
    folder: Path
    kind: str


@dataclass(frozen=True, slots=True)
class Look:
    """This machine as checks see it; a test makes one up. `root` is where /sys and /proc are."""

    resolved: Resolved
    env: Mapping[str, str]
    supervisor: Supervisor | None = None
    run: Tool = run_tool
    system: str = sys.platform
    arch: str = field(default_factory=platform.machine)
    python: tuple[int, ...] = tuple(sys.version_info[:3])
    executable: str = sys.executable
    root: Path = Path("/")
    mounts: Sequence[Mount] = ()
    probe: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def home(self) -> Path:
        """The folder of everything of the user's."""
        return self.resolved.home


Check = Callable[[Look], Iterator[Finding]]
