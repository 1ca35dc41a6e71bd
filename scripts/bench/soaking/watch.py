"""What the soak measures beside the answers: memory, descriptors, and what is in the directory.

Knows nothing about requests.
"""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from scripts.bench.soaking.routine import Routine
from scripts.bench.soaking.servers import Engine, Life, Server

_INTERVAL_S = 1.0
_STILL_S = 1.0
_TASKS = Path("/proc")


@dataclass(frozen=True)
class Held:
    """What a directory holds at one moment."""

    num_bytes: int = 0
    num_files: int = 0
    num_temps: int = 0
    largest: int = 0


@dataclass
class Figures:
    """Memory and descriptors of one process over one life, since its models were ready."""

    at: list[float] = field(default_factory=list[float])
    rss: list[int] = field(default_factory=list[int])
    fds: list[int] = field(default_factory=list[int])


def hold(directory: Path) -> Held:
    """Sum up all files; exact only while nobody changes any."""
    num_bytes = num_files = num_temps = largest = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                size = (Path(folder) / name).lstat().st_size
                num_bytes, num_files = num_bytes + size, num_files + 1
                num_temps += name.startswith(".tmp-")
                largest = max(largest, size)
    return Held(num_bytes, num_files, num_temps, largest)


def _is_still(process: psutil.Process) -> bool:
    """Whether all threads of a stopped process have stopped."""
    tasks = _TASKS / str(process.pid) / "task"
    if not tasks.exists():
        return process.status() == psutil.STATUS_STOPPED
    states: list[str] = []
    for task in tasks.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"T", "t", "Z", "X"}


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def hold_still(directory: Path, engines: Sequence[Engine]) -> Held | None:
    """The same with all engines stopped for that long; None if they would not be still."""
    processes = [p for engine in engines if (p := engine.process()) is not None]
    deadline = time.monotonic() + _STILL_S
    try:
        _signal(processes, signal.SIGSTOP)
        while not all(_has_ended_or(_is_still, process) for process in processes):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        return hold(directory)
    finally:
        _signal(processes, signal.SIGCONT)


def _has_ended_or(check: Callable[[psutil.Process], bool], process: psutil.Process) -> bool:
    try:
        return check(process)
    except (psutil.Error, OSError):
        return True


class Watch(Routine):
    """Samples once a second on a thread of its own."""

    def __init__(self, directory: Path, max_bytes: int, servers: Sequence[Server]) -> None:
        super().__init__()
        self.held: list[Held] = []
        self.over: list[dict[str, Any]] = []
        self.unstill = 0
        self.most_processes = 0
        self._directory = directory
        self._max_bytes = max_bytes
        self._servers = servers
        self._figures: dict[tuple[str, int, str], Figures] = {}

    def _run(self) -> None:
        while not self._is_over.wait(_INTERVAL_S):
            self._sample_directory()
            for server in self._servers:
                server.check_orphans()
                server.note_counters()
                self._sample_memory(server.lives[-1], server)

    def _sample_directory(self) -> None:
        engines = [engine for server in self._servers for engine in server.engines()]
        held = hold_still(self._directory, engines)
        if held is None:
            self.unstill += 1
            return
        self.held.append(held)
        configured = sum(len(server.models) for server in self._servers)
        num = max(configured, sum(engine.process() is not None for engine in engines))
        self.most_processes = max(self.most_processes, num)
        largest = max(one.largest for one in self.held)
        if held.num_bytes > self._max_bytes + num * largest:
            self.over.append({"bytes": held.num_bytes, "processes": num, "block": largest})

    def _sample_memory(self, life: Life, server: Server) -> None:
        if life.ready is None or life.ended is not None or server.live is None:
            return
        own = {"server": psutil.Process(server.live.process.pid)} if server.is_alive else {}
        for name, engine in life.engines.items():
            if (process := engine.process()) is not None:
                own[name] = process
        for name, process in own.items():
            with suppress(psutil.Error):
                rss, fds = process.memory_info().rss, process.num_fds()
                figures = self._figures.setdefault((life.server, life.number, name), Figures())
                figures.at.append(time.monotonic() - life.ready)
                figures.rss.append(rss)
                figures.fds.append(fds)

    def growth(self, warm_up_s: float) -> list[dict[str, Any]]:
        """Medians of the first and the last third of each life, by process, after a warm-up.

        That of a long life takes a tenth of it.
        """
        rows: list[dict[str, Any]] = []
        for (server, number, name), figures in self._figures.items():
            begin_s = max(warm_up_s, figures.at[-1] / 10)
            first = next((i for i, at in enumerate(figures.at) if at >= begin_s), None)
            if first is None or len(figures.at) - first < 9:
                continue
            rss, fds = figures.rss[first:], figures.fds[first:]
            third = len(rss) // 3
            rows.append(
                {
                    "server": server,
                    "life": number,
                    "process": name,
                    "samples": len(rss),
                    "rss_first": round(statistics.median(rss[:third])),
                    "rss_last": round(statistics.median(rss[-third:])),
                    "fds_first": statistics.median(fds[:third]),
                    "fds_last": statistics.median(fds[-third:]),
                    "fds_max": max(fds),
                }
            )
        return rows
