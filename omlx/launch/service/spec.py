"""What a service runs, and in what state it is, whoever supervises it.

Knows nothing about launchd or systemd.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from omlx.launch.background import log_path, start_environment
from omlx.settings import places
from omlx.settings.build import Resolved

NUM_FILES = 8192
_AFTER_DRAIN_S = 15.0
# What says where models and tools are; all else of the terminal's environment stays there.
_CARRIED = ("PATH", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


class Word(Enum):
    """What a supervisor says of its service."""

    RUNNING = "running"
    STARTING = "starting"
    STOPPING = "stopping"
    WAITING = "waiting"  # it ended, and is started again after a pause
    FAILED = "failed"  # it ended, and is not started again
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class State:
    """A service now; `exit_code` is that of its last end, negative for a signal."""

    word: Word
    pid: int | None = None
    num_restarts: int = 0
    exit_code: int | None = None
    at_login: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """What is to be run: `output` gets stdout and stderr until the log takes over.

    `stop_s` is how long a stop may take until what is left is killed.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    home: Path
    output: Path
    stop_s: float
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command line."""
        return (*self.program, "serve", *self.arguments)


@dataclass(frozen=True, slots=True)
class Written:
    """What the file of a service says; empty where somebody changed it beyond recognition."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    output: Path | None = None

    @property
    def program(self) -> str:
        """The interpreter that is started; empty if that is not known."""
        return self.words[0] if self.words else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of `omlx serve`."""
        at = self.words.index("serve") if "serve" in self.words else len(self.words)
        return self.words[at + 1 :]

    @property
    def home(self) -> Path | None:
        """The folder of the user's that it is for."""
        named = self.environment.get("OMLX_HOME")
        return Path(named) if named else None


class Supervisor(Protocol):
    """What starts a service and keeps it alive; one for each user. ServerError for what it can't.

    Its methods may be called from any thread, and wait until the supervisor has answered.
    """

    @property
    def kind(self) -> str:
        """What people call such a service."""
        ...

    @property
    def path(self) -> Path:
        """The file that describes the service."""
        ...

    @property
    def others(self) -> Sequence[Path]:
        """The files of services that other installations may have written for omlx."""
        ...

    def text(self, spec: Spec) -> bytes:
        """The file's contents; ServerError where something can't be written in it."""
        ...

    def read(self, data: bytes) -> Written:
        """What a file says."""
        ...

    def check(self) -> None:
        """ServerError where no supervisor answers."""
        ...

    def load(self) -> None:
        """Take the file as it is now, and start the service at each login from now on."""
        ...

    def unload(self) -> None:
        """End the service, and start it no more; its file is removed next."""
        ...

    def forget(self) -> None:
        """Notice that the file is gone."""
        ...

    def start(self) -> None:
        """Start the service, also one that has failed."""
        ...

    def stop(self) -> None:
        """End the service, also one that waits to be started again."""
        ...

    def restart(self) -> None:
        """End the service, and start it."""
        ...

    def state(self) -> State:
        """How it stands."""
        ...

    def notes(self) -> Sequence[str]:
        """What the user should know after an installation."""
        ...


def spec_of(arguments: Sequence[str], resolved: Resolved, env: Mapping[str, str]) -> Spec:
    """The service that runs `omlx serve` with these options, which `resolved` is made of.

    Paths in them must be absolute: it runs in the user's folder and not in the current one.
    """
    carried = {name: env[name] for name in _CARRIED if env.get(name)}
    if env.get("OMLX_PROFILE"):
        carried["OMLX_PROFILE"] = env["OMLX_PROFILE"]
    own = start_environment({}, resolved, log_path(resolved))
    return Spec(
        program=(sys.executable, "-m", "omlx"),
        arguments=tuple(arguments),
        home=resolved.home,
        output=output_path(resolved.home),
        stop_s=resolved.settings.server.drain_timeout + _AFTER_DRAIN_S,
        environment={**carried, **own},
    )


def output_path(home: Path) -> Path:
    """Where a service writes until it is ready; what it says when it can't start is there."""
    return places.log_dir(home) / "service.log"


def carried_away(env: Mapping[str, str]) -> list[str]:
    """The settings among the variables of this terminal, which a service will not have."""
    kept = ("OMLX_HOME", "OMLX_PROFILE")
    return sorted(
        name for name in env if name.startswith("OMLX_") and env[name] and name not in kept
    )


def user_dir(env: Mapping[str, str]) -> Path:
    """The home folder of the user."""
    named = env.get("HOME")
    return Path(named) if named else Path.home()
