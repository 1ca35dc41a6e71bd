"""Who has signed in to the admin page: sessions of keys, bounded in number and in time.

Knows nothing about routes or the page. For the loop's thread.

A session has two halves, each 256 random bits, of which only hashes are kept here. The ticket is
a cookie, which no script can read; the proof is a header, which only the page that signed in can
send. Neither opens anything alone: a cookie goes to every port of a host and comes along with
requests of other pages, and a script that could read the proof has no cookie to use elsewhere.
"""

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from omlx.server.errors import rate_limited
from omlx.server.keyring import KeyRing
from omlx.server.origin import Headers
from omlx.settings.keys import Key

PROOF_HEADER = "X-Omlx-Session"
COOKIE_PATH = "/admin"
LIFETIME_S = 12 * 3600.0
IDLE_S = 3600.0
_MAX_SESSIONS = 64
_MAX_COOKIES = 8  # of one name that a request may bring
_BYTES = 32
_MAX_ADDRESSES = 1024
_MINUTE_S = 60.0
# Wrong keys within a minute.
WRONG_BY_ADDRESS = 5
WRONG_IN_ALL = 50


@dataclass(slots=True)
class _Session:
    proof: bytes
    key: Key
    began: float
    used: float

    def is_over(self, now: float) -> bool:
        return now - self.began >= LIFETIME_S or now - self.used >= IDLE_S


@dataclass(frozen=True, slots=True)
class Begun:
    """A new session: what the browser is to keep as a cookie, and what its page is told."""

    set_cookie: str
    proof: str


class Sessions:
    """The sessions of one server; `cookie` is the name of the cookie, one for each port."""

    def __init__(
        self,
        keys: KeyRing,
        clock: Callable[[], float],
        *,
        cookie: str = "omlx-admin",
        is_secure: bool = False,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._cookie = cookie
        self._is_secure = is_secure
        self._sessions: dict[bytes, _Session] = {}

    def begin(self, key: Key) -> Begun:
        """Sign a key in (mutates); beyond a limit the session unused longest ends."""
        self._forget()
        if len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda one: self._sessions[one].used)]
        ticket, proof = (secrets.token_urlsafe(_BYTES) for _ in range(2))
        now = self._clock()
        self._sessions[_hashed(ticket)] = _Session(_hashed(proof), key, now, now)
        return Begun(self._set_cookie(ticket, int(LIFETIME_S)), proof)

    def key_of(self, headers: Headers) -> Key | None:
        """The key of a request's session, if both halves are there and the key still is (mutates).

        A key that was taken away, or has expired, takes its sessions with it.
        """
        now, proofs = self._clock(), [_hashed(one) for one in headers.getall(PROOF_HEADER, ())]
        for ticket in self._tickets(headers):
            session = self._sessions.get(ticket)
            if session is None or session.proof not in proofs:
                continue
            if session.is_over(now) or not self._keys.holds(session.key):
                del self._sessions[ticket]
                continue
            session.used = now
            return session.key
        return None

    def end(self, headers: Headers) -> str:
        """Sign a request's session out (mutates); what makes the browser forget its cookie."""
        if self.key_of(headers) is not None:
            proofs = [_hashed(one) for one in headers.getall(PROOF_HEADER, ())]
            for ticket in self._tickets(headers):
                session = self._sessions.get(ticket)
                if session is not None and session.proof in proofs:
                    del self._sessions[ticket]
        return self._set_cookie("", 0)

    @property
    def num_open(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def _set_cookie(self, ticket: str, max_age_s: int) -> str:
        secure = "; Secure" if self._is_secure else ""
        return (
            f"{self._cookie}={ticket}; Path={COOKIE_PATH}; Max-Age={max_age_s}; HttpOnly; "
            f"SameSite=Strict{secure}"
        )

    def _tickets(self, headers: Headers) -> list[bytes]:
        """The hashes of the tickets that came with a request."""
        found: list[bytes] = []
        for header in headers.getall("cookie", ()):
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self._cookie and value:
                    found.append(_hashed(value.strip('"')))
        return found[:_MAX_COOKIES]

    def _forget(self) -> None:
        now = self._clock()
        over = [one for one, session in self._sessions.items() if session.is_over(now)]
        for ticket in over:
            del self._sessions[ticket]


class WrongKeys:
    """Wrong keys within the last minute, by address: whoever sends many has to wait."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}

    def check(self, address: str) -> None:
        """ApiError 429 for an address, or for all of them, after too many."""
        since = self._clock() - _MINUTE_S
        self._times = {
            one: kept
            for one, times in self._times.items()
            if (kept := [time for time in times if time > since])
        }
        everyone = sorted(time for times in self._times.values() for time in times)
        own = self._times.get(address, [])
        for times, most in ((own, WRONG_BY_ADDRESS), (everyone, WRONG_IN_ALL)):
            if len(times) >= most:
                wait_s = max(1, math.ceil(times[-most] - since))
                raise rate_limited("Too many wrong keys; wait before the next one", wait_s)

    def add(self, address: str) -> None:
        """A wrong key came (mutates)."""
        if address not in self._times and len(self._times) >= _MAX_ADDRESSES:
            del self._times[min(self._times, key=lambda one: self._times[one][-1])]
        self._times.setdefault(address, []).append(self._clock())


def _hashed(text: str) -> bytes:
    """What is kept of a half, and compared: its hash says nothing of it, however long that took."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
