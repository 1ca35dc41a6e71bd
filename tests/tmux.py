"""A terminal of tmux of a given size, with a shell or a command in it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.live import REPOSITORY, wait_until

PATIENCE_S = 60.0


class Tmux:
    """Runs `command` while it is entered; without one, a shell that shows a $."""

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        home: Path,
        width: int = 80,
        height: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._tmux = shutil.which("tmux")
        assert self._tmux is not None, "tmux is needed: apt-get install tmux"
        # The path of a socket must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="omlx-tmux-")
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TMUX", "COLUMNS"))},
            "OMLX_HOME": str(home),
            "TMUX_TMPDIR": self._folder.name,
            "LC_ALL": "C.UTF-8",
            "PS1": "$ ",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **(env or {}),
        }
        self._command = list(command) or ["bash", "--norc", "--noprofile"]
        self._size = ("-x", str(width), "-y", str(height))

    def __enter__(self) -> Self:
        self._run("new-session", "-d", *self._size, "-c", str(REPOSITORY), *self._command)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run("kill-server", check=False)
        self._folder.cleanup()

    def lines(self) -> list[str]:
        """What the screen shows, without colours."""
        return [line.rstrip() for line in self._run("capture-pane", "-p", "-N").split("\n")[:-1]]

    def colours(self) -> str:
        """What the screen shows, with the escapes of its colours."""
        return self._run("capture-pane", "-p", "-e", "-N")

    def text(self) -> str:
        """What the screen shows, as one text."""
        return "\n".join(self.lines())

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self._run("send-keys", *keys)

    def type(self, line: str) -> None:
        """Type a line and enter it."""
        self._run("send-keys", "-l", line)
        self.keys("Enter")

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        self._run("resize-window", "-x", str(width), "-y", str(height))

    def told(self, form: str) -> str:
        """A variable of the pane, such as alternate_on or pane_title."""
        return self._run("display-message", "-p", f"#{{{form}}}").rstrip("\n")

    def is_alive(self) -> bool:
        """Whether the command still runs."""
        return self._call("has-session").returncode == 0

    def wait(self, is_shown: Callable[[str], bool], timeout_s: float = PATIENCE_S) -> str:
        """The screen once it shows what it should."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [self.text()]
            return is_shown(found[0])

        try:
            wait_until(look, timeout_s)
        except AssertionError:
            raise AssertionError(f"it never came:\n{found[0]}") from None
        return found[0]

    def settled(self, quiet_s: float = 0.3) -> str:
        """The screen once it has not changed for a while."""
        before, text = "", self.text()
        while text != before:
            time.sleep(quiet_s)
            before, text = text, self.text()
        return text

    def _run(self, *args: str, check: bool = True) -> str:
        done = self._call(*args)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def _call(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._tmux), "-u", "-f", os.devnull, *args],
            env=self._env,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=PATIENCE_S,
        )
