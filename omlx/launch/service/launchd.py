"""An agent of launchd, driven by launchctl.

Knows nothing about what the agent does.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from omlx.errors import ServerError
from omlx.launch.service.plist import LABEL, plist_bytes, read_plist
from omlx.launch.service.seal import sealed
from omlx.launch.service.spec import Spec, State, Word, Written, user_dir
from omlx.launch.service.tool import Done, Tool

_OTHERS = ("homebrew.mxcl.omlx.plist", "homebrew.omlx.plist")
_ASK_S = 15.0
_ACT_S = 180.0
_GONE_S = 60.0
_POLL_S = 0.25
_BUSY_TRIES = 20
_NO_DOMAIN = "launchd runs agents in the session of a user: log in at the screen, not over ssh only"
_FIELD = re.compile(r"^\t(state|pid|runs|last exit code|last terminating signal) = (.+)$", re.M)
_SIGNAL = re.compile(r"(\d+)\s*$")


class Launchd:
    """The launchd of the user's session; a Supervisor."""

    kind = "launchd agent"

    def __init__(
        self,
        env: Mapping[str, str],
        run: Tool,
        *,
        uid: int,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = user_dir(env) / "Library" / "LaunchAgents"
        self._domain = f"gui/{uid}"
        self._target = f"{self._domain}/{LABEL}"
        self._run = run
        self._pause = pause

    @property
    def path(self) -> Path:
        """The property list."""
        return self._folder / f"{LABEL}.plist"

    @property
    def others(self) -> Sequence[Path]:
        """Property lists that Homebrew may have written."""
        return tuple(self._folder / name for name in _OTHERS)

    def text(self, spec: Spec) -> bytes:
        """The property list; ServerError where something can't be written in it."""
        return sealed(plist_bytes(spec))

    def read(self, data: bytes) -> Written:
        """What a property list says."""
        return read_plist(data)

    def check(self) -> None:
        """ServerError where the user has no session."""
        done = self._run(["launchctl", "print", self._domain], _ASK_S)
        if done.code != 0:
            raise ServerError(f"launchd has no session of this user: {done.said}", hint=_NO_DOMAIN)

    def load(self) -> None:
        """Forget an agent that was loaded before; `start` takes the file as it is now."""
        self._leave()
        self._do("enable", self._target)

    def unload(self) -> None:
        """End the agent and forget it."""
        self._leave()

    def forget(self) -> None:
        """Nothing: launchd reads the file at the next login only."""

    def start(self) -> None:
        """Start the agent; one that is loaded is loaded anew, so that it counts from nothing."""
        self.restart()

    def stop(self) -> None:
        """End the agent until the next login or start: one that is loaded would come again."""
        self._leave()

    def restart(self) -> None:
        """End the agent, and start it."""
        self._leave()
        self._enter()

    def state(self) -> State:
        """How it stands."""
        said = self._print()
        return State(Word.STOPPED, at_login=self.path.exists()) if said is None else state_of(said)

    def notes(self) -> Sequence[str]:
        """Nothing: an agent runs as long as the user is logged in."""
        return ()

    def _enter(self) -> None:
        """Load the agent; launchd says that it is busy while an earlier one ends."""
        for attempt in range(_BUSY_TRIES):
            done = self._call("bootstrap", self._domain, str(self.path))
            if done.code == 0:
                return
            if attempt < _BUSY_TRIES - 1 and done.code in (5, 37):
                self._pause(_POLL_S)
                continue
            raise ServerError(f"launchctl bootstrap failed: {done.said}")

    def _leave(self) -> None:
        """Unload the agent, and wait until it is gone."""
        if self._print() is None:
            return
        done = self._call("bootout", self._target)
        for _ in range(int(_GONE_S / _POLL_S)):
            if self._print() is None:
                return
            self._pause(_POLL_S)
        raise ServerError(f"launchctl bootout does not end the service: {done.said}")

    def _print(self) -> str | None:
        """What launchd says of the agent; None where it is not loaded."""
        done = self._run(["launchctl", "print", self._target], _ASK_S)
        if done.code == 0:
            return done.out
        if done.code in (124, 127):
            raise ServerError(f"launchd does not answer: {done.said}")
        return None

    def _call(self, *words: str) -> Done:
        return self._run(["launchctl", *words], _ACT_S)

    def _do(self, *words: str) -> None:
        done = self._call(*words)
        if done.code != 0:
            raise ServerError(f"launchctl {' '.join(words)} failed: {done.said}")


def state_of(said: str) -> State:
    """What `launchctl print` says of an agent that is loaded."""
    fields = {match[1]: match[2].strip() for match in _FIELD.finditer(said)}
    pid = fields.get("pid", "")
    code, number = fields.get("last exit code", ""), fields.get("last terminating signal", "")
    ended = int(code.split(":")[0]) if code.split(":")[0].lstrip("-").isdecimal() else None
    if number and (match := _SIGNAL.search(number)):
        ended = -int(match[1])
    word = {
        "running": Word.RUNNING,
        "spawn scheduled": Word.WAITING,
        "not running": Word.FAILED if ended else Word.STOPPED,
        "exited": Word.FAILED if ended else Word.STOPPED,
    }.get(fields.get("state", ""), Word.STARTING)
    runs = fields.get("runs", "")
    return State(
        word,
        int(pid) if pid.isdecimal() else None,
        max(0, int(runs) - 1) if runs.isdecimal() else 0,
        ended,
        at_login=True,
    )
