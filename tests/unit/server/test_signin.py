"""Sessions of the admin page and the limit of wrong keys, without a server."""

from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie

import pytest

from omlx.server.errors import ApiError
from omlx.server.keyring import KeyRing
from omlx.server.signin import (
    IDLE_S,
    LIFETIME_S,
    PROOF_HEADER,
    WRONG_BY_ADDRESS,
    WRONG_IN_ALL,
    Sessions,
    WrongKeys,
)
from omlx.settings.keys import Scope, change_keys, new_key, with_key, without_key


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Sent:
    """Request headers."""

    def __init__(self, **headers):
        self.headers = {name.lower().replace("_", "-"): value for name, value in headers.items()}

    def getall(self, key, default=()):
        value = self.headers.get(key.lower())
        return default if value is None else [value]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    for name, scope in (("boss", Scope.ADMIN), ("other", Scope.ADMIN)):
        key, _ = new_key(name, now=datetime.now(UTC), scope=scope)
        change_keys(tmp_path / "keys.toml", with_key(key))
    return tmp_path / "keys.toml"


@pytest.fixture
def ring(path):
    keys = KeyRing(path, None)
    keys.load()
    return keys


def halves(begun, name="omlx-admin"):
    """What a browser sends afterwards."""
    ticket = SimpleCookie(begun.set_cookie)[name].value
    return {"cookie": f"a=b; {name}={ticket}", PROOF_HEADER.replace("-", "_"): begun.proof}


def key_of(ring, name="boss"):
    return next(key for key in ring._keys if key.name == name)


def test_only_both_halves_open_a_session(ring, clock):
    sessions = Sessions(ring, clock)
    sent = halves(sessions.begin(key_of(ring)))
    other = halves(sessions.begin(key_of(ring, "other")))
    proof = PROOF_HEADER.replace("-", "_")
    assert sessions.key_of(Sent(**sent)).name == "boss"
    assert sessions.key_of(Sent(**other)).name == "other"
    assert sessions.key_of(Sent(cookie=sent["cookie"])) is None
    assert sessions.key_of(Sent(**{proof: sent[proof]})) is None
    assert sessions.key_of(Sent(**{**sent, proof: other[proof]})) is None
    assert sessions.key_of(Sent(**{**sent, "cookie": "omlx-admin=made-up"})) is None
    assert sessions.num_open == 2


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_cookie(ring, clock, is_secure):
    sessions = Sessions(ring, clock, cookie="omlx-admin-8000", is_secure=is_secure)
    (cookie,) = SimpleCookie(sessions.begin(key_of(ring)).set_cookie).values()
    assert cookie.key == "omlx-admin-8000"
    assert cookie["httponly"] is True
    assert cookie["samesite"] == "Strict"
    assert cookie["path"] == "/admin"
    assert cookie["domain"] == ""
    assert 0 < int(cookie["max-age"]) <= LIFETIME_S
    assert bool(cookie["secure"]) is is_secure


def test_a_session_ends_by_time_and_by_idleness(ring, clock):
    sessions = Sessions(ring, clock)
    sent = Sent(**halves(sessions.begin(key_of(ring))))
    began = clock.now
    while clock.now + IDLE_S / 2 < began + LIFETIME_S:
        clock.now += IDLE_S / 2
        assert sessions.key_of(sent) is not None
    clock.now = began + LIFETIME_S
    assert sessions.key_of(sent) is None
    sent = Sent(**halves(sessions.begin(key_of(ring))))
    clock.now += IDLE_S
    assert sessions.key_of(sent) is None
    assert sessions.num_open == 0


def test_signing_out_ends_it_on_the_server(ring, clock):
    sessions = Sessions(ring, clock)
    sent, other = (Sent(**halves(sessions.begin(key_of(ring)))) for _ in range(2))
    assert sessions.end(Sent(cookie=sent.headers["cookie"])).startswith("omlx-admin=;")
    assert sessions.key_of(sent) is not None, "half of a session may not end it"
    assert "Max-Age=0" in sessions.end(sent)
    assert sessions.key_of(sent) is None
    assert sessions.key_of(other) is not None


def test_a_revoked_key_takes_its_sessions_with_it(ring, path, clock):
    sessions = Sessions(ring, clock)
    sent = Sent(**halves(sessions.begin(key_of(ring))))
    other = Sent(**halves(sessions.begin(key_of(ring, "other"))))
    change_keys(path, without_key("boss"))
    ring.load()
    assert sessions.key_of(sent) is None
    assert sessions.key_of(other) is not None


@pytest.mark.parametrize("change", ["scope", "expires", "digest"])
def test_a_key_that_is_another_now_ends_sessions_of_the_old_one(ring, path, clock, change):
    sessions = Sessions(ring, clock)
    sent = Sent(**halves(sessions.begin(key_of(ring))))
    change_keys(path, without_key("boss"))
    changed = {
        "scope": {"scope": Scope.INFERENCE},
        "expires": {"scope": Scope.ADMIN, "expires": datetime.now(UTC) - timedelta(seconds=1)},
        "digest": {"scope": Scope.ADMIN},
    }[change]
    key, _ = new_key("boss", now=datetime.now(UTC), **changed)
    change_keys(path, with_key(key))
    ring.load()
    assert sessions.key_of(sent) is None


def test_sessions_are_bounded_and_the_one_unused_longest_goes(ring, clock):
    sessions = Sessions(ring, clock)
    first = Sent(**halves(sessions.begin(key_of(ring))))
    second = Sent(**halves(sessions.begin(key_of(ring))))
    for _ in range(62):
        clock.now += 1
        sessions.begin(key_of(ring))
    assert sessions.num_open == 64
    assert sessions.key_of(first) is not None
    clock.now += 1
    sessions.begin(key_of(ring))
    assert sessions.num_open == 64
    assert sessions.key_of(first) is not None
    assert sessions.key_of(second) is None


def test_halves_are_kept_as_hashes_only(ring, clock):
    sessions = Sessions(ring, clock)
    begun = sessions.begin(key_of(ring))
    ticket = SimpleCookie(begun.set_cookie)["omlx-admin"].value
    kept = repr(vars(sessions))
    assert begun.proof not in kept and ticket not in kept


def test_wrong_keys_have_to_wait_by_address(clock):
    wrong = WrongKeys(clock)
    for _ in range(WRONG_BY_ADDRESS):
        wrong.check("10.0.0.1")
        wrong.add("10.0.0.1")
    with pytest.raises(ApiError) as refused:
        wrong.check("10.0.0.1")
    assert refused.value.status == 429
    assert 1 <= int(refused.value.headers["retry-after"]) <= 60
    wrong.check("10.0.0.2")
    clock.now += 60
    wrong.check("10.0.0.1")


def test_wrong_keys_from_everywhere_have_to_wait_too(clock):
    wrong = WrongKeys(clock)
    for number in range(WRONG_IN_ALL):
        wrong.check(f"10.0.0.{number}")
        wrong.add(f"10.0.0.{number}")
    with pytest.raises(ApiError, match="Too many wrong keys"):
        wrong.check("10.9.9.9")


def test_addresses_are_bounded(clock):
    wrong = WrongKeys(clock)
    for number in range(3000):
        wrong.add(str(number))
    assert len(wrong._times) <= 1024
