"""`omlx serve` as a process of its own for a bench: a fresh one, on a folder of its own.

Knows nothing about what is asked of it.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from omlx.bench.client import Target
from omlx.bench.failure import BenchError
from omlx.bench.pagecache import Dropped, drop_folder
from omlx.bench.process import Program, python_path
from omlx.client import get_json, read_states
from omlx.errors import ServerError
from omlx.settings.leaf import leaves
from omlx.settings.places import state_dir

_START_S = 120.0
_LOAD_S = 600.0
_STOP_S = 30.0
_WRITTEN_S = 60.0
_SETTLED_S = 1.1  # what a server says of its engines may be a second old
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Serve:
    """What a server is started with.

    `models` are model folders, or folders of such; `settings` are by their path, as
    {"cache.enabled": False}. Nothing else reaches it: no OMLX_* variable of this process, no
    config.toml of the user's or of the folder that the bench runs in.
    """

    models: tuple[Path, ...]
    settings: Mapping[str, object] = field(default_factory=dict[str, object])

    def having(self, settings: Mapping[str, object]) -> "Serve":
        """The same with other settings, too."""
        return replace(self, settings={**self.settings, **settings})


class Server:
    """One `omlx serve` on a free port of this machine, with a home and so a store of its own.

    As a context manager it is started, ready and always ended. `restart` and `kill` keep the store.
    Without a `home` one is made, empty, and removed at the end.
    """

    def __init__(self, serve: Serve, *, home: Path | None = None, name: str = "omlx") -> None:
        self.name = name
        self.address = ""
        self.ready_s = 0.0
        self._serve = serve
        self._is_own_home = home is None
        self.home = home or Path(tempfile.mkdtemp(prefix="omlx-bench-"))
        self._program: Program | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def store(self) -> Path:
        """The folder of its disk tier."""
        named = self._serve.settings.get("cache.dir")
        return Path(str(named)) if named else self.home / "cache"

    @property
    def pid(self) -> int:
        """The id of the process that runs, or ran last."""
        return self._running.pid

    @property
    def _running(self) -> Program:
        assert self._program is not None, "not started"
        return self._program

    def start(
        self, settings: Mapping[str, object] | None = None, *, is_loaded: bool = True
    ) -> float:
        """Start it, with further settings if given, and wait until its models are loaded.

        Without `is_loaded` it is enough that it takes requests, which wait for the load then.
        Returns the seconds that took. BenchError; nothing is left running then.
        """
        if settings:
            self._serve = self._serve.having(settings)
        self.home.mkdir(parents=True, exist_ok=True)
        self._program = Program(
            [sys.executable, "-m", "omlx", "serve", *arguments(self._serve)],
            name=self.name,
            env=self._environment(),
            cwd=self.home,
            log=self.home / "serve.log",
        )
        began = time.monotonic()
        try:
            self._program.start()
            self._program.wait_until(self._has_address, timeout_s=_START_S)
            if is_loaded:
                self._program.wait_until(self._is_ready, timeout_s=_LOAD_S)
        except BaseException:
            self._program.kill()
            raise
        self.ready_s = time.monotonic() - began
        return self.ready_s

    def stop(self) -> None:
        """Have it finish, store what it holds and end; BenchError if it has to be killed."""
        if not self._running.stop(timeout_s=_STOP_S):
            raise BenchError(
                f"{self.name} did not end within {_STOP_S:.0f} s of SIGTERM and was killed\n"
                + self._running.log_tail()
            )

    def restart(self, settings: Mapping[str, object] | None = None) -> float:
        """Stop it, and `start` it again on the same store, with further settings if given."""
        self.stop()
        return self.start(settings)

    def kill(self) -> None:
        """End it at once, as a crash would; the store stays as it is."""
        self._running.kill()

    def close(self) -> None:
        """End what runs and remove the folder if it was made here (idempotent)."""
        try:
            if self._program is not None:
                self._program.close()
        finally:
            if self._is_own_home:
                shutil.rmtree(self.home, ignore_errors=True)

    def target(self, model: str, *, name: str = "") -> Target:
        """What a client needs to ask it."""
        return Target(self.address, model, name=name or self.name)

    def status(self) -> Mapping[str, object]:
        """What `/admin/api/status` says; BenchError."""
        try:
            return get_json(self.address, "/admin/api/status", timeout_s=10.0)
        except ServerError as error:
            raise BenchError(f"{self.name}: {error.message}") from None

    def model_status(self, model: str) -> Mapping[str, object]:
        """The part of the status that is about one model; BenchError if it has none."""
        for one in cast(list[dict[str, object]], self.status()["models"]):
            if one.get("id") == model:
                return one
        raise BenchError(f"{self.name} has no model {model!r}")

    def wait_written(self, *, timeout_s: float = _WRITTEN_S) -> None:
        """Wait until all that was computed is on disk; BenchError if that takes too long."""
        deadline = time.monotonic() + timeout_s
        written_at: float | None = None
        while written_at is None or time.monotonic() - written_at < _SETTLED_S:
            if not self._is_written():
                written_at = None
            elif written_at is None:
                written_at = time.monotonic()
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{self.name} still has blocks to write after {timeout_s:.0f} s",
                    hint="the disk may be slow or full; its log says",
                )
            time.sleep(_POLL_S)

    def drop_page_cache(self) -> Dropped:
        """Have the files of its store out of the page cache, if the system can."""
        return drop_folder(self.store)

    def memory_bytes(self) -> int:
        """Resident memory of the server and its engines."""
        return self._running.memory_bytes()

    def log_text(self) -> str:
        """All that it and its engines wrote."""
        return self._running.log_text()

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMLX_", "SANIC_"))}
        return python_path({**kept, "OMLX_HOME": str(self.home)})

    def _has_address(self) -> bool:
        for _, found in read_states(state_dir(self.home)):
            if found is not None and found.pid == self.pid:
                self.address = found.address
                return True
        return False

    def _is_ready(self) -> bool:
        with suppress(ServerError):
            health = get_json(self.address, "/health")
            return health.get("status") == "ready"
        return False

    def _is_written(self) -> bool:
        for model in cast(list[dict[str, object]], self.status()["models"]):
            writes = model.get("writes")
            if isinstance(writes, dict):
                found = cast(dict[str, object], writes)
                if found.get("queued_bytes") or found.get("dirty_bytes"):
                    return False
        return True


@contextmanager
def serving(serve: Serve, *, home: Path | None = None, name: str = "omlx") -> Generator[Server]:
    """A server that runs and is ready, and is gone afterwards."""
    with Server(serve, home=home, name=name) as server:
        yield server


def arguments(serve: Serve) -> list[str]:
    """The options of `omlx serve`; BenchError for a setting that there is not."""
    known = leaves()
    settings: dict[str, object] = {"server.host": "127.0.0.1", "server.port": 0}
    settings |= {"models.hub_cache": False, "engine.preload": "always", **serve.settings}
    found = [f"{known['models.dir'].flag}={folder}" for folder in serve.models]
    for path, value in settings.items():
        leaf = known.get(path)
        if leaf is None:
            raise BenchError(f"there is no setting {path!r}", hint="omlx config show lists them")
        if isinstance(value, bool):
            found.append(leaf.flag if value else "--no-" + leaf.flag.removeprefix("--"))
        else:
            values = cast(Sequence[object], value) if isinstance(value, tuple | list) else [value]
            found += [f"{leaf.flag}={one}" for one in values]
    return found
