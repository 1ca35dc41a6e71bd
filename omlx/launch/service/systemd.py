"""A user service of systemd, driven by systemctl.

Knows nothing about what the service does.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from omlx.errors import ServerError
from omlx.launch.service.seal import sealed
from omlx.launch.service.spec import Spec, State, Word, Written, user_dir
from omlx.launch.service.tool import Done, Tool
from omlx.launch.service.unit import read_unit, unit_text

UNIT = "omlx.service"
_OTHERS = ("homebrew.omlx.service", "homebrew.mxcl.omlx.service")
_ASK_S = 15.0
_ACT_S = 180.0  # a stop stores what is in memory
_NO_SYSTEMD = (
    "omlx start runs a server without one; in a container or over su there is no session of "
    "systemd, machinectl shell USER@ makes one"
)
_ENDED_BY_SIGNAL = ("2", "3")  # CLD_KILLED, CLD_DUMPED


class Systemd:
    """The user's instance of systemd; a Supervisor."""

    kind = "systemd user unit"

    def __init__(
        self,
        env: Mapping[str, str],
        run: Tool,
        *,
        lingering: Path = Path("/var/lib/systemd/linger"),
    ) -> None:
        named = env.get("XDG_CONFIG_HOME")
        config = Path(named) if named else user_dir(env) / ".config"
        self._folder = config / "systemd" / "user"
        self._user = env.get("USER") or env.get("LOGNAME") or ""
        self._lingering = lingering
        self._run = run

    @property
    def path(self) -> Path:
        """The unit."""
        return self._folder / UNIT

    @property
    def others(self) -> Sequence[Path]:
        """Units that Homebrew may have written."""
        return tuple(self._folder / name for name in _OTHERS)

    def text(self, spec: Spec) -> bytes:
        """The unit; ServerError where a path or an option can't be written in it."""
        return sealed(unit_text(spec, version=self._version()).encode())

    def read(self, data: bytes) -> Written:
        """What a unit says."""
        return read_unit(data.decode("utf-8", "replace"))

    def check(self) -> None:
        """ServerError where the user has no systemd."""
        done = self._run(["systemctl", "--user", "show-environment"], _ASK_S)
        if done.code != 0:
            raise ServerError(
                f"systemd runs no services for this user: {done.said}", hint=_NO_SYSTEMD
            )

    def load(self) -> None:
        """Take the unit as it is now, and start it at each login from now on."""
        self._do("daemon-reload")
        self._do("enable", UNIT)

    def unload(self) -> None:
        """End the service, and start it no more."""
        self.stop()
        self._do("disable", UNIT)

    def forget(self) -> None:
        """Notice that the unit is gone."""
        self._do("daemon-reload")

    def start(self) -> None:
        """Start the service, also one that has failed too often."""
        self._call("reset-failed", UNIT)  # says no where it has not failed
        self._do("start", UNIT)

    def stop(self) -> None:
        """End the service, also one that waits to be started again."""
        self._do("stop", UNIT)
        self._call("reset-failed", UNIT)

    def restart(self) -> None:
        """End the service, and start it."""
        self._call("reset-failed", UNIT)
        self._do("restart", UNIT)

    def state(self) -> State:
        """How it stands; ServerError where systemd does not say."""
        names = ("ActiveState", "SubState", "MainPID", "NRestarts", "UnitFileState")
        ends = ("ExecMainCode", "ExecMainStatus")
        done = self._call("show", UNIT, "--property", ",".join((*names, *ends)))
        if done.code != 0:
            raise ServerError(
                f"systemd does not say how {UNIT} stands: {done.said}", hint=_NO_SYSTEMD
            )
        pairs = (line.partition("=") for line in done.out.splitlines())
        return state_of({name: value for name, _, value in pairs})

    def notes(self) -> Sequence[str]:
        """That it ends with the last session of the user, unless that was changed."""
        if self._user and not (self._lingering / self._user).exists():
            return (
                "the service ends when you log out, and starts when you log in; "
                f"loginctl enable-linger {self._user} keeps it running",
            )
        return ()

    def _call(self, verb: str, *words: str) -> Done:
        limit = _ASK_S if verb in ("show", "reset-failed") else _ACT_S
        return self._run(["systemctl", "--user", verb, *words], limit)

    def _do(self, verb: str, *words: str) -> None:
        done = self._call(verb, *words)
        if done.code != 0:
            what = " ".join(("systemctl --user", verb, *words))
            raise ServerError(f"{what} failed: {done.said}")

    def _version(self) -> int | None:
        done = self._run(["systemctl", "--version"], _ASK_S)
        match = re.match(r"systemd (\d+)", done.out)
        return int(match[1]) if match else None


def state_of(said: Mapping[str, str]) -> State:
    """What `systemctl show` says."""
    active, sub = said.get("ActiveState", ""), said.get("SubState", "")
    word = {
        "active": Word.RUNNING,
        "reloading": Word.RUNNING,
        "activating": Word.WAITING if sub.startswith("auto-restart") else Word.STARTING,
        "deactivating": Word.STOPPING,
        "failed": Word.FAILED,
    }.get(active, Word.STOPPED)
    how, status = said.get("ExecMainCode", ""), _number(said.get("ExecMainStatus"))
    ended = status if how == "1" else -status if how in _ENDED_BY_SIGNAL else None
    return State(
        word,
        _number(said.get("MainPID")) or None,
        _number(said.get("NRestarts")),
        ended,
        at_login=said.get("UnitFileState") == "enabled",
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
