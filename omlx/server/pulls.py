"""Models that are being fetched for a running server, each in a process of its own.

Knows nothing about HTTP, hubs or files. For the loop's thread.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from omlx.errors import OmlxError

_log = logging.getLogger("omlx.server")
_TASK = "omlx.models.pull_task"
_MAX_RUNNING = 2
_MAX_KEPT = 20
_MAX_LINE = 2**16
_MAX_TEXT = 1000
_END_S = 5.0


class PullState(StrEnum):
    """How a pull gets on."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Pull:
    """One model that is, or was, fetched; bytes are those of its stage."""

    number: int
    model: str
    began: float
    state: PullState = PullState.RUNNING
    stage: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    error: str = ""
    served_as: str | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def shown(self, now: float) -> dict[str, object]:
        """What may be told of it, as plain values."""
        return {
            "number": self.number,
            "model": self.model,
            "state": self.state.value,
            "stage": self.stage,
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "age_s": now - self.began,
            "error": self.error or None,
            "served_as": self.served_as,
        }


class PullFailed(Exception):
    """A pull ended without its model; the message is for the user."""


OnProgress = Callable[[int, int, str], None]
# Fetches a model as a spec says, and returns its folder; PullFailed.
Fetch = Callable[[Mapping[str, object], OnProgress], Awaitable[str]]


class Pulls:
    """The pulls of one server.

    `adopt` serves a folder that has come, and says under which name; OmlxError.
    """

    def __init__(
        self, fetch: Fetch, adopt: Callable[[str], str | None], clock: Callable[[], float]
    ) -> None:
        self._fetch = fetch
        self._adopt = adopt
        self._clock = clock
        self._pulls: dict[int, Pull] = {}
        self._next = 1

    def shown(self) -> list[dict[str, object]]:
        """All that are kept, the newest first."""
        now = self._clock()
        return [one.shown(now) for one in reversed(self._pulls.values())]

    @property
    def is_full(self) -> bool:
        """Whether as many run as may."""
        return len(self._running()) >= _MAX_RUNNING

    def running(self, model: str) -> Pull | None:
        """The pull of a model that runs, if any."""
        return next((one for one in self._running() if one.model == model), None)

    def begin(self, model: str, spec: Mapping[str, object]) -> Pull:
        """Begin to fetch a model (mutates)."""
        assert not self.is_full
        pull = Pull(self._next, model, self._clock())
        self._next += 1
        self._pulls[pull.number] = pull
        for number in list(self._pulls)[:-_MAX_KEPT]:
            if self._pulls[number].state is not PullState.RUNNING:
                del self._pulls[number]
        pull.task = asyncio.create_task(self._run(pull, spec), name="pull")
        return pull

    async def cancel(self, number: int) -> Pull | None:
        """End a pull, whose part is kept for the next try (mutates); None if there is none."""
        pull = self._pulls.get(number)
        if pull is not None and pull.task is not None and pull.state is PullState.RUNNING:
            pull.state = PullState.CANCELLED
            await _ended(pull.task)
        return pull

    async def close(self) -> None:
        """End all of them (mutates)."""
        for pull in self._running():
            await self.cancel(pull.number)

    def _running(self) -> list[Pull]:
        return [one for one in self._pulls.values() if one.state is PullState.RUNNING]

    async def _run(self, pull: Pull, spec: Mapping[str, object]) -> None:
        def report(done: int, total: int, stage: str) -> None:
            pull.done_bytes, pull.total_bytes, pull.stage = done, total, stage

        try:
            folder = await self._fetch(spec, report)
            _log.info("fetched %s into %s", pull.model, folder)
            pull.state = PullState.DONE
            pull.served_as = self._adopt(folder)
        except PullFailed as error:
            if pull.state is PullState.RUNNING:
                pull.state, pull.error = PullState.FAILED, str(error)[:_MAX_TEXT]
                _log.warning("%s was not fetched: %s", pull.model, pull.error)
        except OmlxError as error:
            pull.error = f"It is there, but not served: {error.message}"[:_MAX_TEXT]
            _log.warning("%s: %s", pull.model, pull.error)


async def fetch_in_process(spec: Mapping[str, object], report: OnProgress) -> str:
    """Fetch a model in a process of its own, which ends with this call; PullFailed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _TASK,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(dict(spec)).encode())
        process.stdin.close()
        async for line in process.stdout:
            match _message(line):
                case {"progress": [int(done), int(total), str(stage)]}:
                    report(done, total, stage)
                case {"result": {"path": str(path)}}:
                    await process.wait()
                    return path
                case {"error": {"message": str(message), "hint": str(hint)}}:
                    raise PullFailed(f"{message} ({hint})" if hint else message)
                case _:
                    continue
    except (OSError, ValueError) as error:
        raise PullFailed(f"its process can't be talked to: {error}") from None
    finally:
        await _end(process)
    raise PullFailed(f"its process ended with code {process.returncode}; the log has more")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that may have ended: gently first, so that it keeps what it has."""
    for stop in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _message(line: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}
