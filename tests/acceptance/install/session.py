"""A login session with a systemd of its own, in a mount namespace: real units, and nothing outside
is touched. Needs root, util-linux and systemd; a machine that was booted with systemd or not."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live import REPOSITORY, command

SYSTEMD = ("/lib/systemd/systemd", "/usr/lib/systemd/systemd")
RUN = "/run/user/4242"
_BEGIN = f"""
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system {RUN}
chmod 700 {RUN}
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$GROUP"
echo $$ > "/sys/fs/cgroup/$GROUP/cgroup.procs"
exec "$SYSTEMD" --user --log-target=console
"""


class Session:
    """Commands of a user whose home has an awkward name."""

    def __init__(self, user: Path, process: subprocess.Popen[bytes]) -> None:
        self.user, self._process = user, process
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("OMLX_", "XDG_"))}
        kept.pop("LD_PRELOAD", None)
        self.env = {
            **kept, "HOME": str(user), "USER": "ann", "XDG_RUNTIME_DIR": RUN,
            "PYTHONPATH": str(REPOSITORY), "SHELL": "/bin/sh",
        }  # fmt: skip

    @property
    def home(self) -> Path:
        return self.user / ".omlx"

    @property
    def unit(self) -> Path:
        return self.user / ".config" / "systemd" / "user" / "omlx.service"

    def run(
        self, *words: str, timeout_s: float = 240, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the session to its end."""
        inside = ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", "--", *words]
        return subprocess.run(
            inside, cwd="/", env={**self.env, **env}, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip

    def omlx(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(*command(*args), **env)

    def systemctl(self, *words: str) -> str:
        return self.run("systemctl", "--user", *words).stdout.strip()

    def service(self) -> dict[str, Any]:
        """What `omlx service status` says of the service."""
        return json.loads(self.omlx("service", "status", "--json").stdout)["service"]


@contextmanager
def session(folder: Path) -> Iterator[Session]:
    """A session for a user below a folder; all that it started is ended."""
    assert os.getuid() == 0, "the session needs root, for a mount namespace"
    systemd = next((path for path in SYSTEMD if Path(path).exists()), None)
    assert systemd, "systemd is not installed: apt-get install systemd"
    user = folder / 'ann\'s "home" 100%h $X'
    user.mkdir(parents=True)
    group = f"omlx-test-{os.getpid()}"
    log = (folder / "systemd.log").open("wb")
    env = {**os.environ, "HOME": str(user), "XDG_RUNTIME_DIR": RUN, "GROUP": group}
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BEGIN],
        env={**env, "SYSTEMD": systemd}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found = Session(user, process)
    try:
        wait_until(lambda: found.systemctl("is-system-running") in ("running", "degraded"), 30)
        yield found
    finally:
        found.systemctl("stop", "omlx.service")
        found.systemctl("exit")
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        _remove_group(group)


def _remove_group(name: str) -> None:
    """Remove the control groups that the session made, wherever the system has them."""
    for base in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        top = base / name
        if top.is_dir():
            for folder in [*sorted(top.rglob("*"), reverse=True), top]:
                if folder.is_dir():
                    try:
                        folder.rmdir()
                    except OSError:
                        return


def wait_until(is_so: Callable[[], bool], seconds: float) -> float:
    """Wait for something, and how long it took; AssertionError if it does not come."""
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s"
        time.sleep(0.3)
    return time.monotonic() - begin
