"""The servers of a comparison: our own, those of recipes, and those that run already.

Knows nothing about what they are asked.
"""

import http.client
import importlib.metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from omlx.bench.client import Target
from omlx.bench.failure import BenchError
from omlx.bench.machine import version_of
from omlx.bench.pagecache import Dropped, drop_folder
from omlx.bench.process import Program
from omlx.bench.recipes import Recipe, Weights, fill
from omlx.bench.servers import Serve, Server
from omlx.engine.blas import preload_library, with_preload
from omlx.models.gguf_export import export_gguf

_ASK_S = 5.0
_SETTLE_S = 3.0
_OWN = "omlx"


class Side(Protocol):
    """One server of a comparison; `start` and `restart` wait until it is ready."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def can_restart(self) -> bool:
        """Whether it is a process that the bench starts."""
        ...

    def start(self) -> float | None:
        """A fresh process with nothing kept; the seconds until it was ready, None if it ran."""
        ...

    def settle(self) -> None:
        """Let it do what it puts off, such as writing."""
        ...

    def restart(self) -> tuple[float, Dropped]:
        """End it as a user would and start it again with what it kept, out of the page cache.

        The seconds are those until it took requests: its model may still be loading.
        """
        ...

    def target(self) -> Target:
        """How it is asked."""
        ...

    def memory_bytes(self) -> int | None:
        """Resident memory of all its processes; None where that can't be seen."""
        ...

    def facts(self) -> Mapping[str, object]:
        """What is known of it: version, command, caching, buffering."""
        ...

    def close(self) -> None:
        """End what was started and remove what it kept (idempotent)."""
        ...


@dataclass(frozen=True, slots=True)
class Model:
    """The model that all sides serve: its folder, its name for ours, and its window in tokens.

    A server that wants the weights as GGUF gets a file of them in `scratch`, made once.
    """

    folder: Path
    model_id: str
    window: int
    scratch: Path

    def gguf(self) -> Path:
        """The same weights in float32; ModelError where they can't be written so."""
        path = self.scratch / "model-f32.gguf"
        if not path.exists():
            export_gguf(self.folder, path)
        return path


@dataclass
class OwnSide:
    """omlx itself, with its default settings and those given."""

    model: Model
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    name: str = _OWN
    can_restart: bool = True
    _server: Server | None = None

    def start(self) -> float:
        """As `Side`."""
        self.close()
        self._server = Server(Serve((self.model.folder,), self.settings), name=self.name)
        return self._server.start()

    def settle(self) -> None:
        """As `Side`: what it computed is on the disk then."""
        time.sleep(_SETTLE_S)
        self._running.wait_written()

    def restart(self) -> tuple[float, Dropped]:
        """As `Side`."""
        self._running.stop()
        dropped = self._running.drop_page_cache()
        return self._running.start(is_loaded=False), dropped

    def target(self) -> Target:
        """As `Side`."""
        return self._running.target(self.model.model_id, name=self.name)

    def memory_bytes(self) -> int:
        """As `Side`."""
        return self._running.memory_bytes()

    def facts(self) -> Mapping[str, object]:
        """As `Side`."""
        return {
            "title": "omlx serve",
            "version": version_of("omlx"),
            "settings": dict(self.settings) or "defaults",
            "memory_cache": "blocks of 256 tokens that prompts share, exact to the token",
            "restart": "all blocks, on the disk",
            "sharing": "prompts in flight share what they begin with",
            "buffering": "one event a token",
        }

    def close(self) -> None:
        """As `Side`."""
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def _running(self) -> Server:
        assert self._server is not None, "not started"
        return self._server


@dataclass
class PeerSide:
    """A server of others, started from its recipe; `venv` is where it is installed."""

    recipe: Recipe
    model: Model
    venv: Path | None
    streams: int
    can_restart: bool = True
    _home: Path | None = None
    _program: Program | None = None
    _target: Target | None = None

    @property
    def name(self) -> str:
        """As `Side`."""
        return self.recipe.name

    def check(self) -> None:
        """BenchError if it is not installed, or wants the weights in a form they don't have."""
        if self.venv is not None and not self._python().exists():
            raise BenchError(
                f"{self.name} is not installed in {self.venv}",
                hint=f"scripts/peers {self.name} installs it; --peers-dir names another folder",
            )
        if self.recipe.weights is Weights.GGUF:
            self.model.gguf()

    def start(self) -> float:
        """As `Side`."""
        self.close()
        self._home = Path(tempfile.mkdtemp(prefix="omlx-bench-"))
        return self._begin(self._home)

    def settle(self) -> None:
        """As `Side`."""
        time.sleep(_SETTLE_S)

    def restart(self) -> tuple[float, Dropped]:
        """As `Side`."""
        assert self._program is not None and self._home is not None, "not started"
        self._program.stop(timeout_s=self.recipe.stop_s)
        dropped = drop_folder(self._home)
        return self._begin(self._home), dropped

    def target(self) -> Target:
        """As `Side`."""
        assert self._target is not None, "not started"
        return self._target

    def memory_bytes(self) -> int:
        """As `Side`."""
        assert self._program is not None, "not started"
        return self._program.memory_bytes()

    def facts(self) -> Mapping[str, object]:
        """As `Side`."""
        command = [word if "\n" not in word else "SCRIPT" for word in self.recipe.command]
        return {
            "title": self.recipe.title,
            "version": self._version(),
            "command": " ".join(command),
            "body": dict(self.recipe.body),
            "weights": self.recipe.weights.value,
            **self.recipe.facts,
        }

    def close(self) -> None:
        """As `Side`."""
        try:
            if self._program is not None:
                self._program.kill()  # nothing of it is used again
                self._program.close()
        finally:
            self._program = None
            if self._home is not None:
                shutil.rmtree(self._home, ignore_errors=True)
                self._home = None

    def _begin(self, home: Path) -> float:
        port = free_port()
        places = self._places(home, port)
        command, env, request_model = self.recipe.filled(places)
        program = Program(
            command, name=self.name, env=self._env(env), cwd=home, log=home / "bench-server.log"
        )
        self._program = program
        url = f"http://127.0.0.1:{port}"
        ready = fill(self.recipe.ready, places)
        began = time.monotonic()
        program.start()
        try:
            program.wait_until(lambda: _answers(url, ready), timeout_s=self.recipe.ready_s)
        except BaseException:
            program.kill()
            raise
        self._target = Target(url, request_model, name=self.name, extra=self.recipe.body)
        return time.monotonic() - began

    def _places(self, home: Path, port: int) -> dict[str, str]:
        is_gguf = self.recipe.weights is Weights.GGUF
        return {
            "python": str(self._python()),
            "bin": str(self._python().parent),
            "model": str(self.model.folder),
            "gguf": str(self.model.gguf()) if is_gguf else "",
            "home": str(home),
            "port": str(port),
            "window": str(self.model.window),
            "streams": str(self.streams),
            "cores": str(os.cpu_count() or 1),
        }

    def _python(self) -> Path:
        return Path(sys.executable) if self.venv is None else self.venv / "bin" / "python"

    def _env(self, own: Mapping[str, str]) -> dict[str, str]:
        """Nothing of ours reaches it but the BLAS that our engines get."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OMLX_", "PYTHON", "VIRTUAL_ENV"))
        }
        return with_preload({**kept, **own}, preload_library("auto"))

    def _version(self) -> str | None:
        if not self.recipe.package:
            return None
        if self.venv is None:
            return version_of(self.recipe.package)
        places = [str(path) for path in self.venv.glob("lib/python*/site-packages")]
        found = importlib.metadata.distributions(name=self.recipe.package, path=places)
        return next((one.version for one in found), None)


@dataclass
class GivenSide:
    """A server that somebody runs; nothing of it is started, ended or seen but its answers."""

    name: str
    url: str
    request_model: str
    key: str | None = field(default=None, repr=False)
    can_restart: bool = False

    def start(self) -> None:
        """As `Side`: it runs."""

    def settle(self) -> None:
        """As `Side`."""
        time.sleep(_SETTLE_S)

    def restart(self) -> tuple[float, Dropped]:
        """Its user's to do: BenchError."""
        raise BenchError(f"{self.name} runs already and is not the bench's to restart")

    def target(self) -> Target:
        """As `Side`."""
        return Target(self.url, self.request_model, key=self.key, name=self.name)

    def memory_bytes(self) -> None:
        """As `Side`: not to be seen."""

    def facts(self) -> Mapping[str, object]:
        """As `Side`."""
        return {
            "title": self.name,
            "url": self.url,
            "model": self.request_model,
            "memory_cache": "unknown: a server that ran already",
            "restart": "not measured: a server that ran already",
        }

    def close(self) -> None:
        """As `Side`: it goes on."""


def with_venv(recipe: Recipe, peers_dir: Path) -> Path | None:
    """Where the server of a recipe is installed; None where its command needs no venv."""
    if recipe.venv:
        return Path(recipe.venv).expanduser()
    needs = any("{python}" in word or "{bin}" in word for word in recipe.command)
    return peers_dir / recipe.name if needs and recipe.package else None


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _answers(url: str, path: str) -> bool:
    """Whether a path answers with 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ASK_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
