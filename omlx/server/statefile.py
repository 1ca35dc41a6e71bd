"""The state file of this process: where the server is, and how it was started.

Knows nothing about who reads it (omlx/client.py does).
"""

import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import psutil

from omlx import __version__
from omlx.client import MAX_STATE_BYTES, Launched, read_states, state_name


def state_path(state_dir: Path, address: str) -> Path:
    """The file that says that a server runs on the address' port, or socket."""
    return state_dir / state_name(address)


def write_state(
    state_dir: Path,
    address: str,
    *,
    cache_dir: Path,
    started: datetime,
    certificate: str | None = None,
    drain_s: float | None = None,
    log_path: Path | None = None,
    launched: Launched | None = None,
) -> None:
    """Leave word of this process for `omlx` commands: pid, address, version, start, cache.

    `certificate` is the fingerprint of the one that the server shows, `drain_s` what a stop may
    take, `log_path` where stderr goes, `launched` what `omlx restart` needs. OSError.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    state: dict[str, object] = {
        "pid": os.getpid(),
        "address": address,
        "version": __version__,
        "started": started.isoformat(timespec="seconds"),
        "process_started": psutil.Process().create_time(),
        "cache_dir": str(cache_dir),
        "certificate": certificate,
        "drain_s": drain_s,
        "log": None if log_path is None else str(log_path),
        "launched": None if launched is None else _shown(launched),
    }
    _replace(state_path(state_dir, address), _text(state))


def _shown(launched: Launched) -> dict[str, object]:
    return {
        "arguments": launched.arguments,
        "cwd": str(launched.cwd),
        "withheld": launched.withheld,
    }


def _text(state: dict[str, object]) -> str:
    said = {key: value for key, value in state.items() if value is not None}
    text = json.dumps(said) + "\n"
    if len(text) > MAX_STATE_BYTES:  # nobody would read it: rather no restart than no server
        del said["launched"]
        text = json.dumps(said) + "\n"
    return text


def _replace(path: Path, text: str) -> None:
    # mkstemp files are 0600 from the start.
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


@contextmanager
def removing_state(state_dir: Path) -> Generator[None]:
    """Remove this process' state files at the end."""
    try:
        yield
    finally:
        for path, state in read_states(state_dir):
            if state is not None and state.pid == os.getpid():
                with suppress(FileNotFoundError):
                    path.unlink()
