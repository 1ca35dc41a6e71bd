"""Keeps keys to their limits: requests and tokens a minute, requests at the same time.

Knows nothing about HTTP or where limits come from. For the loop's thread.

What may be used fills up evenly, up to that of one minute. Tokens are known only once they are
used, so a request may take more than is left; the next one then waits until that is made up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from omlx.server.errors import rate_limited
from omlx.settings.keys import Limits

_MINUTE_S = 60.0
_RETRY_S = 1.0  # when one of several requests may have ended


@dataclass(slots=True)
class _Bucket:
    """What is left of a limit by the minute, as of `at`; less than 0 is a debt."""

    left: float
    at: float

    def fill(self, per_minute: int, now: float) -> None:
        """Let time pass (mutates)."""
        more = (now - self.at) * per_minute / _MINUTE_S
        self.left, self.at = min(float(per_minute), self.left + more), now

    def wait_s(self, per_minute: int, wanted: float) -> float:
        """Seconds until so much is there."""
        return (wanted - self.left) * _MINUTE_S / per_minute


@dataclass(slots=True)
class _Account:
    """What one key uses now."""

    buckets: dict[str, _Bucket] = field(default_factory=dict[str, _Bucket])
    num_open: int = 0

    def bucket(self, name: str, per_minute: int, now: float) -> _Bucket:
        """What is left of one limit (mutates)."""
        bucket = self.buckets.setdefault(name, _Bucket(float(per_minute), now))
        bucket.fill(per_minute, now)
        return bucket


class Visit:
    """One request of a key, as a context that gives its place back however it ends."""

    def __init__(self, account: _Account, limits: Limits, clock: Callable[[], float]) -> None:
        self._account = account
        self._limits = limits
        self._clock = clock
        self._rest: Callable[[], int] = _nothing

    def __enter__(self) -> Self:
        self._account.num_open += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._account.num_open -= 1
        self.charge(self._rest())

    def charge(self, num_tokens: int, *, then: Callable[[], int] | None = None) -> None:
        """So many tokens are used, and at the end as many as `then` says (mutates)."""
        per_minute = self._limits.tokens_per_minute
        if per_minute is not None:
            self._account.bucket("tokens", per_minute, self._clock()).left -= num_tokens
        self._rest = then or _nothing


class Quotas:
    """The accounts of keys by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def visit(self, name: str, limits: Limits) -> Visit:
        """A request of a key, to be entered at once; ApiError 429 where it has to wait (mutates).

        One that is refused counts for nothing.
        """
        if limits == Limits():
            return Visit(_Account(), limits, self._clock)
        account, now = self._accounts.setdefault(name, _Account()), self._clock()
        most = limits.concurrent
        if most is not None and account.num_open >= most:
            text = f"The API key may have {most} requests at the same time"
            raise rate_limited(text, _whole(_RETRY_S))
        tokens = limits.tokens_per_minute
        if tokens is not None:
            bucket = account.bucket("tokens", tokens, now)
            if bucket.left <= 0:
                text = f"The API key may use {tokens} tokens a minute"
                raise rate_limited(text, _whole(bucket.wait_s(tokens, 1)))
        requests = limits.requests_per_minute
        if requests is not None:
            bucket = account.bucket("requests", requests, now)
            if bucket.left < 1:
                text = f"The API key may send {requests} requests a minute"
                raise rate_limited(text, _whole(bucket.wait_s(requests, 1)))
            bucket.left -= 1
        return Visit(account, limits, self._clock)


def _nothing() -> int:
    return 0


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
