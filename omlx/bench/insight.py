"""What a server says of itself beside its answers: where hits came from, bytes written, settings.

Knows nothing about what is measured. Only omlx says all of this; of others little is known.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from omlx.bench.client import Target
from omlx.client import get_json
from omlx.errors import ServerError

_ASK_S = 10.0
_RECENT_S = 5.0
_POLL_S = 0.05
_WINDOWS = ("context_window", "max_model_len", "context_length", "max_context_length")

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Course:
    """How a request that is over was served: prompt tokens by tier, and where it missed.

    `part` is the part of the prompt that the first missing token lies in, empty if not known.
    """

    cached_memory: int
    cached_disk: int
    uncached: int
    part: str


class Insight:
    """Asks one server; what it does not say is None. For any thread."""

    def __init__(
        self,
        target: Target,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target = target
        self._clock = clock
        self._pause = pause

    @property
    def is_omlx(self) -> bool:
        """Whether its status can be had: it is omlx, and the key is one of an admin."""
        return self.status() is not None

    def status(self) -> Fields | None:
        """The status of an omlx server."""
        found = self._get("/admin/api/status")
        return found if found is not None and isinstance(found.get("models"), list) else None

    def uptime_s(self) -> float | None:
        """For how many seconds it has run."""
        value = (self.status() or {}).get("uptime_s")
        return float(value) if isinstance(value, int | float) else None

    def is_ready(self) -> bool:
        """Whether it has loaded a model, or at least lists some."""
        health = self._get("/health")
        if health is not None and isinstance(health.get("status"), str):
            return health["status"] in ("ready", "ok")
        return self._get(self._base + "/models") is not None

    def setting(self, path: str) -> object:
        """The value of a setting, as {"cache.block_size"}; None if that is not said."""
        settings = _fields((self._get("/admin/api/settings") or {}).get("settings"))
        return _fields(settings.get(path)).get("value")

    def window(self) -> int | None:
        """How many tokens the model's window has."""
        for raw in _items((self._get(self._base + "/models") or {}).get("data")):
            one = _fields(raw)
            if one.get("id") == self._target.model:
                sizes = (one.get(name) for name in _WINDOWS)
                return next((size for size in sizes if isinstance(size, int) and size > 0), None)
        return None

    def course(self, request_id: str) -> Course | None:
        """How a request was served; waits a little, since that is noted after its answer."""
        if not request_id:
            return None
        deadline = self._clock() + _RECENT_S
        while True:
            status = self.status()
            if status is None:
                return None
            for raw in _items(status.get("recent")):
                one = _fields(raw)
                name = one.get("id")
                if isinstance(name, str) and name and request_id.endswith(name):
                    return _course(one)
            if self._clock() >= deadline:
                return None
            self._pause(_POLL_S)

    def bytes_written(self) -> int | None:
        """Bytes that its engines have written to disk since they started."""
        models = self._models()
        if models is None:
            return None
        counters = (_fields(one.get("counters")) for one in models)
        return sum(_number(one.get("bytes_written")) for one in counters)

    def is_written(self) -> bool | None:
        """Whether all that was computed is on disk."""
        models = self._models()
        if models is None:
            return None
        writes = [_fields(one.get("writes")) for one in models]
        return not any(one.get("queued_bytes") or one.get("dirty_bytes") for one in writes)

    def wait_written(self, timeout_s: float) -> bool | None:
        """The same, after at most so many seconds of waiting for it."""
        deadline = self._clock() + timeout_s
        while (found := self.is_written()) is False and self._clock() < deadline:
            self._pause(_POLL_S)
        return found

    @property
    def _base(self) -> str:
        return urlsplit(self._target.url).path.rstrip("/") or "/v1"

    def _models(self) -> list[Fields] | None:
        status = self.status()
        return None if status is None else [_fields(one) for one in _items(status.get("models"))]

    def _get(self, path: str) -> Fields | None:
        try:
            return get_json(self._target.url, path, api_key=self._target.key, timeout_s=_ASK_S)
        except ServerError:
            return None


def _course(one: Fields) -> Course:
    part = one.get("part")
    return Course(
        cached_memory=_number(one.get("cached_memory")),
        cached_disk=_number(one.get("cached_disk")),
        uncached=_number(one.get("uncached")),
        part=part if isinstance(part, str) else "",
    )


def _fields(value: object) -> Fields:
    """An object of JSON; empty where it is anything else."""
    return cast(Fields, value) if isinstance(value, dict) else {}


def _items(value: object) -> list[object]:
    """A list of JSON; empty where it is anything else."""
    return cast(list[object], value) if isinstance(value, list) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
