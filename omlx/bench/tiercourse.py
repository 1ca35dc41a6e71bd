"""One round of the cache's bench: a fresh server and store, and the same two prompts again and
again.

Knows nothing about what becomes of the figures.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from omlx.bench.client import Answer, Ask, ask
from omlx.bench.failure import BenchError
from omlx.bench.measured import Model
from omlx.bench.result import Label, Process, Start
from omlx.bench.servers import Serve, Server
from omlx.bench.step import Steps
from omlx.units import format_size

NO_LIMIT = "as it is"
_LONG_S = 3600.0
_JOURNAL_S = 10.0
_ANY = "any"


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: the time to its first token in seconds, and where its prefix came from.

    `ready_s` is how long the server took to start before, `memory_bytes` what it held in memory at
    the end of a part; both only where they were looked at. `meant` is the start that it should be.
    """

    step: str
    disk: str
    label: Label
    ttft_s: float
    uncached_tokens: int
    meant: str
    ready_s: float | None = None
    memory_bytes: int | None = None

    @property
    def is_as_meant(self) -> bool:
        """Whether it is the miss or hit that it was to be; a hit leaves one token to compute."""
        is_whole = self.meant == Start.MISS.value or self.uncached_tokens <= 1
        return is_whole and self.meant in (_ANY, self.label.start.value)


def served_with() -> dict[str, object]:
    """The settings of the servers: disk hits are always taken, writes don't wait for long."""
    return {
        "cache.load": "always",
        "cache.write_delay": "100ms",
        "cache.min_free": "500MB",
        "journal.enabled": True,
    }


class Course:
    """Runs one round; `note` gets what the reader of the figures should know."""

    def __init__(
        self,
        serve: Serve,
        model: Model,
        prompts: tuple[Sequence[int], Sequence[int]],
        steps: Steps,
        what: str,
        note: Callable[[str], None],
    ) -> None:
        self._server = Server(serve)
        self._model = model
        self._first, self._second = prompts
        self._steps = steps
        self._what = what
        self._note = note
        self._process = Process.COLD
        self._last_id = ""
        self._disk = NO_LIMIT

    def run(self, rates: Sequence[int]) -> Iterator[Seen]:
        """All requests of the round in order; the server is gone afterwards."""
        self._steps.begin(f"{self._what}: empty store")
        with self._server:
            yield self._ask("first request", self._first, Start.MISS, ready_s=self._server.ready_s)
            yield self._ask("miss", self._second, Start.MISS)
            yield self._ask("memory hit", self._first, Start.MEMORY)
            yield self._ask(
                "memory hit again",
                self._second,
                Start.MEMORY,
                memory_bytes=self._server.memory_bytes(),
            )
            held_bytes = self._held_bytes()
            self._server.wait_written()
            yield from self._from_disk("as it is", 0)
            for rate in rates:
                yield from self._from_disk(rate_text(rate), rate)
            yield from self._half_memory(held_bytes // 2)

    def _from_disk(self, disk: str, rate: int) -> Iterator[Seen]:
        """Both prompts from disk, the first by a process that has just started."""
        self._steps.begin(f"{self._what}: disk {disk}")
        self._disk = disk
        ready_s = self._restart({"cache.max_disk_rate": rate})
        yield self._ask("restart", self._first, Start.DISK, ready_s=ready_s)
        self._drop()
        yield self._ask("disk hit", self._second, Start.DISK)

    def _half_memory(self, budget_bytes: int) -> Iterator[Seen]:
        """Both prompts in turn, with memory for half of what they take."""
        self._steps.begin(f"{self._what}: half the memory")
        self._disk = NO_LIMIT
        settings = {"cache.max_disk_rate": 0, "cache.memory_size": budget_bytes}
        self._restart(settings)
        for prompt in (self._first, self._second):
            self._ask("", prompt, Start.DISK)  # fills the memory
        for prompt in (self._first, self._second):
            yield self._ask("half the memory", prompt, None)

    def _restart(self, settings: dict[str, object]) -> float:
        self._server.stop()
        self._drop()
        self._process = Process.COLD
        self._last_id = ""
        return self._server.start(settings)

    def _drop(self) -> None:
        dropped = self._server.drop_page_cache()
        if not dropped.is_dropped:
            share = "" if dropped.cached_share is None else f" ({dropped.cached_share:.0%} of them)"
            self._note(f"files of the store stay in the page cache{share}: {dropped.reason}")
        elif dropped.reason:
            self._note(f"files were dropped from the page cache; {dropped.reason}")

    def _ask(
        self,
        step: str,
        prompt: Sequence[int],
        meant: Start | None,
        *,
        ready_s: float | None = None,
        memory_bytes: int | None = None,
    ) -> Seen:
        answer = ask(
            self._server.target(self._model.id),
            Ask(prompt, 2, limit_s=_LONG_S, silence_s=_LONG_S, extra={"min_tokens": 2}),
        )
        memory, disk, uncached = self._where(answer)
        label = Label(self._process, _start(memory, disk))
        self._process = Process.WARM
        return Seen(
            step,
            self._disk,
            label,
            answer.first_s,
            uncached,
            _ANY if meant is None else meant.value,
            ready_s,
            memory_bytes,
        )

    def _where(self, answer: Answer) -> tuple[int, int, int]:
        """Tokens of the last request from memory, from disk, and computed, as its server says."""
        deadline = time.monotonic() + _JOURNAL_S
        while True:
            recent = cast(list[dict[str, object]], self._server.status()["recent"])
            if recent and recent[0]["id"] != self._last_id:
                break
            if time.monotonic() > deadline:
                raise BenchError("the server does not say where a prefix came from")
            time.sleep(0.02)
        last = recent[0]
        self._last_id = str(last["id"])
        memory, disk, uncached = (
            int(cast(int, last[name])) for name in ("cached_memory", "cached_disk", "uncached")
        )
        if answer.cached_tokens is not None and answer.cached_tokens != memory + disk:
            self._note(
                f"the usage of an answer tells of {answer.cached_tokens:,} cached tokens, the "
                f"server's status of {memory + disk:,}"
            )
        return memory, disk, uncached

    def _held_bytes(self) -> int:
        memory = cast(dict[str, object], self._server.model_status(self._model.id)["memory"])
        return int(cast(int, memory["bytes"]))


def rate_text(bytes_per_s: int) -> str:
    """A rate in few characters: 100000000 is "100 MB/s"."""
    return f"{format_size(bytes_per_s)}/s".replace(".0 ", " ")


def _start(memory: int, disk: int) -> Start:
    if memory and disk:
        return Start.MIXED
    return Start.MEMORY if memory else Start.DISK if disk else Start.MISS
