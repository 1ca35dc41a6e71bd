"""The servers of the soak: started on one cache directory, killed in several ways, started again.

Knows nothing about requests; it tells whether one may have been broken by a kill.
"""

import os
import random
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.live import Live

# What the kills of the soak themselves make a server say.
_EXPECTED = re.compile(r"ended with exit code -9|refused: 5\d\d|The engine process ended")
_READY_S = 90.0
_STOP_S = 60.0
_ORPHAN_S = 20.0  # what an engine without its server may take to end


@dataclass
class Disturbance:
    """From when until when requests may break."""

    start: float
    end: float = float("inf")


@dataclass(frozen=True)
class Engine:
    """An engine process; it is another one if its number is used again."""

    pid: int
    created: float

    def process(self) -> psutil.Process | None:
        """The process, if it is still there."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            is_same = process.create_time() == self.created
            if is_same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


@dataclass
class Life:
    """One server process: how it was started and ended, and its engines."""

    server: str
    number: int
    options: dict[str, str]
    started: float
    ready: float | None = None
    ended: float | None = None
    end: str = ""
    engines: dict[str, Engine] = field(default_factory=dict[str, Engine])
    counters: dict[str, Any] = field(default_factory=dict[str, Any])


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One `omlx serve` that comes back on the same port after each end; any thread may ask."""

    def __init__(
        self, name: str, models: list[str], args: list[str], home: Path, rng: random.Random
    ) -> None:
        self.name = name
        self.models = models
        self.port = free_port()
        self.lives: list[Life] = []
        self.problems: list[str] = []
        self.orphans: list[tuple[Engine, float]] = []
        self.live: Live | None = None
        self._args = args
        self._home = home
        self._rng = rng
        self._disturbances = [Disturbance(0.0)]
        self._ready = threading.Event()
        self._readers: list[threading.Thread] = []

    def start(self, *, wait: bool = True) -> None:
        """Start with other tiers than last time; returns once all models are ready, or at once."""
        options = {
            "--cache-memory-size": self._rng.choice(["0", "300kB", "1MB", "4MB"]),
            "--cache-write-delay": self._rng.choice(["0s", "100ms", "500ms", "2s"]),
        }
        life = Life(self.name, len(self.lives), options, time.monotonic())
        self.lives.append(life)
        flat = [text for pair in options.items() for text in pair]
        # The reference tokenizes replies anew; the ledger has the tokens they were made of.
        fixed = ("--port", str(self.port), "--preload", "always", "--no-ledger")
        args = (*fixed, *self._args, *flat)
        self.live = Live(*args, home=self._home, wait=False)
        if wait:
            self.wait_models()

    def wait_models(self) -> None:
        """Wait until every model is ready; from then on no request may fail."""
        live, life = self.live, self.lives[-1]
        assert live is not None
        deadline = time.monotonic() + _READY_S
        while True:
            states = {model["id"]: model["state"] for model in live.status()["models"]}
            if set(states.values()) == {"ready"}:
                break
            assert live.process.poll() is None, "".join(live.lines[-50:])
            assert time.monotonic() < deadline, (states, live.lines[-50:])
            time.sleep(0.1)
        life.engines = self._find_engines(live)
        life.ready = time.monotonic()
        for disturbance in self._disturbances:
            disturbance.end = min(disturbance.end, life.ready)
        self._ready.set()

    def _find_engines(self, live: Live) -> dict[str, Engine]:
        """The engine of each model."""
        pids = {model["id"]: model["pid"] for model in live.status()["models"]}
        assert sorted(pids) == sorted(self.models), pids
        return {name: Engine(pid, psutil.Process(pid).create_time()) for name, pid in pids.items()}

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self.live is not None and self.live.process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests now."""
        return self._ready.is_set()

    def wait_ready(self) -> None:
        """Wait for the next time that it takes requests."""
        self._ready.wait()

    def may_have_broken(self, since: float) -> bool:
        """Whether the end of a server may have broken a request that began at `since`."""
        return any(disturbance.end >= since for disturbance in list(self._disturbances))

    def kill(self, how: str) -> None:
        """End this life: "server", "all", "engine" or "stop"."""
        live, life = self.live, self.lives[-1]
        assert live is not None
        life.end = how
        engines = list(life.engines.values()) or list(self._loading_engines(live))
        if how == "engine" and life.engines:
            self._kill_engine(live, life)
        self._ready.clear()
        self._disturbances.append(Disturbance(time.monotonic()))
        if how in ("server", "all"):
            live.process.kill()
            for engine in engines if how == "all" else ():
                with suppress(psutil.Error):
                    if (process := engine.process()) is not None:
                        process.kill()
            live.process.wait()
        else:
            live.process.terminate()
            code = live.process.wait(_STOP_S)
            if code != 0:
                self.problems.append(f"{self.name} ended with {code} after SIGTERM ({how})")
        now = time.monotonic()
        life.ended = now
        self.orphans += [(engine, now + _ORPHAN_S) for engine in engines]
        # Orphans hold its stderr; the next life must not wait for them.
        reader = threading.Thread(target=self._read_log, args=(live,))
        reader.start()
        self._readers.append(reader)

    def _loading_engines(self, live: Live) -> list[Engine]:
        with suppress(psutil.Error):
            children = psutil.Process(live.process.pid).children(recursive=True)
            return [Engine(child.pid, child.create_time()) for child in children]
        return []

    def _kill_engine(self, live: Live, life: Life) -> None:
        """Kill one engine, which the server starts again: no request may break."""
        model = self._rng.choice(sorted(life.engines))
        life.end = f"engine {model}"
        with suppress(ProcessLookupError):
            os.kill(life.engines[model].pid, signal.SIGKILL)
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            found = {one["id"]: one for one in live.status()["models"]}[model]
            if found["restarts"] and found["state"] == "ready":
                break
            time.sleep(0.05)
        else:
            self.problems.append(f"{self.name}: {model} is not started again after a kill")
        life.engines = self._find_engines(live)
        time.sleep(self._rng.uniform(2, 6))

    def join(self) -> None:
        """Wait until the logs of all lives are read."""
        for reader in self._readers:
            reader.join()

    def _read_log(self, live: Live) -> None:
        live.kill()  # it has ended; this reads its stderr to the end
        lines = list(live.lines)
        for idx, line in enumerate(lines):
            is_error = " ERROR " in line or "Traceback" in line
            if is_error and not _EXPECTED.search(line):
                told = "".join(lines[max(0, idx - 2) : idx + 30])
                self.problems.append(f"{self.name} says: {told}"[:4000])
                return

    def check_orphans(self) -> None:
        """Report engines that have outlived their server for too long."""
        now = time.monotonic()
        for engine, deadline in list(self.orphans):
            if engine.process() is None:
                self.orphans.remove((engine, deadline))
            elif now > deadline:
                self.orphans.remove((engine, deadline))
                self.problems.append(f"{self.name}: engine {engine.pid} has outlived its server")

    def engines(self) -> list[Engine]:
        """Every engine process of this server that may be alive, orphans included."""
        own = list(self.lives[-1].engines.values()) if self.lives else []
        return own + [engine for engine, _ in list(self.orphans)]

    def note_counters(self) -> None:
        """Ask for the figures of this life, to have the last ones when it ends."""
        live, life = self.live, self.lives[-1]
        if live is None or life.ready is None or life.ended is not None:
            return
        with suppress(OSError, ValueError, KeyError):
            for model in live.status()["models"]:
                life.counters[model["id"]] = model["counters"]
