"""Which clients are installed, and whether their versions are new enough.

Knows nothing about how they are set up. Their own --version is asked, without a terminal, without
the user's keys, and not for longer than some seconds.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from omlx.launch.catalog import Client

TIMEOUT_S = 10.0
_MAX_OUTPUT_CHARS = 2000
_SECRET = re.compile(r"(_|^)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_QUIET = {
    "CI": "1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
    "NO_UPDATE_NOTIFIER": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "KILO_DISABLE_AUTOUPDATE": "1",
    "KILO_DISABLE_MODELS_FETCH": "1",
    "KILO_TELEMETRY_LEVEL": "off",
    "COPILOT_AUTO_UPDATE": "false",
    "COPILOT_OFFLINE": "true",
    "PI_OFFLINE": "1",
    "CLINE_NO_AUTO_UPDATE": "1",
    "CONTINUE_TELEMETRY_ENABLED": "0",
    "OPENCLAW_DISABLE_UPDATE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


class State(StrEnum):
    """What can be said of a client."""

    READY = "ready"
    TOO_OLD = "too old"
    NOT_FOUND = "not found"
    BROKEN = "broken"
    SLOW = "slow"  # it has not said its version in time, as on a busy machine


@dataclass(frozen=True, slots=True)
class Found:
    """One client on this machine; `reason` says why it is not ready."""

    state: State
    path: Path | None = None
    version: str | None = None
    reason: str = ""


def detect(client: Client, env: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> Found:
    """Look for a client on PATH and ask it for its version."""
    path = find(client, env)
    if path is None:
        return Found(State.NOT_FOUND, reason=f"no {' or '.join(client.executables)} on PATH")
    try:
        output = _ask([str(path), *client.version_args], env, timeout_s)
    except subprocess.TimeoutExpired:
        return Found(State.SLOW, path, reason=f"it does not say its version within {timeout_s:g} s")
    except _Silent as silent:
        return Found(State.BROKEN, path, reason=str(silent))
    match = re.search(client.version_pattern, output)
    if match is None:
        said = " ".join(output.split())[:60]
        return Found(State.BROKEN, path, reason=f"its version is not to be found in {said!r}")
    version = match[1]
    if numbers(version) < numbers(client.least_version):
        return Found(State.TOO_OLD, path, version, f"needs {client.least_version} or newer")
    return Found(State.READY, path, version)


def find(client: Client, env: Mapping[str, str]) -> Path | None:
    """The executable of a client."""
    for name in client.executables:
        found = shutil.which(name, path=env.get("PATH", os.defpath))
        if found is not None:
            return Path(found)
    return None


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: 1.10 is newer than 1.9, and 1.0 the same as 1."""
    found = [int(part[:9]) for part in re.findall(r"\d+", version)]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)


class _Silent(Exception):
    """A client that does not say its version, and how it does not."""


def _ask(argv: list[str], env: Mapping[str, str], timeout_s: float) -> str:
    """What a command prints, or TimeoutExpired; it gets a session of its own, so that all of it can
    be ended."""
    quiet = {key: value for key, value in env.items() if not _SECRET.search(key)} | _QUIET
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=quiet,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _Silent(f"it can't be run: {getattr(error, 'strerror', None) or error}") from None
        try:
            code = process.wait(timeout_s)
        finally:
            _end(process)
        out.seek(0)
        text = out.read(_MAX_OUTPUT_CHARS).decode("utf-8", "replace")
    if code != 0:
        last = " ".join(text.split())[-80:]
        raise _Silent(
            f"its version is not to be had: exit code {code}" + (f", {last}" if last else "")
        )
    return text


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the session, also what the command itself started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
