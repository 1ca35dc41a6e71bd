"""The folder of a quantization that is not finished: what is done already, by whole files.

Knows nothing about what the files hold. A file appears by a rename, so one that is there is whole;
the same options on the same model find it again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import psutil

from omlx.errors import ModelError

# What the stubs of mlx leave untyped.
_mx: Any = mx
_VERSION = 2  # raised when the same options give other files
_IDENTITY = "identity.json"


class Work:
    """One run's folder beside its target; for one process, which it holds it for."""

    def __init__(self, out_dir: Path, identity: Mapping[str, object]) -> None:
        self.folder = out_dir.parent / f".{out_dir.name}.quantize"
        whole = {"version": _VERSION, **identity}
        self._lock = self.folder / "pid"
        self.is_resumed = self._take(whole)

    def has(self, name: str) -> bool:
        """Whether a file is there, and so whole."""
        return (self.folder / name).exists()

    def path(self, name: str) -> Path:
        """Where a file is or will be."""
        return self.folder / name

    def put_json(self, name: str, value: object) -> None:
        """Write a file at once."""

        def write(path: Path) -> None:
            path.write_text(json.dumps(value), "utf-8")

        self._put(name, write)

    def get_json(self, name: str) -> Any:
        """What `put_json` wrote."""
        return json.loads((self.folder / name).read_text("utf-8"))

    def put_arrays(self, name: str, arrays: Mapping[str, mx.array]) -> None:
        """Write arrays as safetensors at once."""

        def write(path: Path) -> None:
            # The suffix decides the format.
            _mx.save_safetensors(str(path), dict(arrays), metadata={"format": "mlx"})

        self._put(name, write)

    def get_arrays(self, name: str) -> dict[str, mx.array]:
        """What `put_arrays` wrote, lazily."""
        return cast(dict[str, mx.array], _mx.load(str(self.folder / name)))

    def drop(self, *names: str) -> None:
        """Remove files that are not needed any more."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is over, and its result elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def leave(self) -> None:
        """The run ends before its end: the next one goes on."""
        self._lock.unlink(missing_ok=True)

    def _put(self, name: str, write: Callable[[Path], None]) -> None:
        fresh = self.folder / f"new-{name}"
        write(fresh)
        with fresh.open("rb") as file:
            os.fsync(file.fileno())
        fresh.rename(self.folder / name)

    def _take(self, identity: Mapping[str, object]) -> bool:
        """Make the folder, or go on with the one of the same run; whether it was there."""
        mine = json.loads(json.dumps(identity))
        try:
            found: object = self.get_json(_IDENTITY)
        except (OSError, ValueError):
            found = None
        self._refuse_running()
        is_same = found == mine
        if not is_same:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        self._lock.write_text(str(os.getpid()), "utf-8")
        if not is_same:
            self.put_json(_IDENTITY, mine)
        return is_same

    def _refuse_running(self) -> None:
        try:
            pid = int(self._lock.read_text("utf-8"))
        except (OSError, ValueError):
            return
        if pid != os.getpid() and psutil.pid_exists(pid):
            raise ModelError(
                f"{self.folder} belongs to a quantization that runs, with process id {pid}",
                hint="Wait for it, or give another -o.",
            )


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
