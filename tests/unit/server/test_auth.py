"""Who may ask: addresses, Host and Origin, keys and what they open."""

import hmac
from datetime import UTC, datetime, timedelta

import pytest
from sanic.compat import Header

from omlx.errors import ServerError, SettingsError
from omlx.server.auth import Guard, Need, check_access, need_of
from omlx.server.errors import ApiError
from omlx.server.keyring import KeyRing
from omlx.server.origin import is_loopback
from omlx.settings.keys import Limits, Scope, new_key, write_keys
from omlx.settings.server import Server

LOCAL = ("host", "127.0.0.1:8000")
LAN = ("host", "192.168.1.5:8000")
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def guard_of(host, api_key=None, *, path=None, **settings):
    ring = KeyRing(path, api_key)
    ring.load()
    return Guard(Server(host=host, api_key=api_key, **settings), ring)


def status(guard, *headers, method="POST", need=Need.INFERENCE):
    """200, or the status of the refusal."""
    try:
        guard.check(method, Header(headers), need)
    except ApiError as error:
        return error.status
    return 200


def check(host, api_key=None, *, path=None, **settings):
    ring = KeyRing(path, api_key)
    ring.load()
    check_access(Server(host=host, api_key=api_key, **settings), ring)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "127.9.9.9"])
def test_loopback_hosts_need_no_key(host):
    assert is_loopback(host)
    check(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_other_hosts_need_a_key(host):
    """X3"""
    with pytest.raises(ServerError, match="API key") as caught:
        check(host, None)
    assert "OMLX_SERVER_API_KEY" in caught.value.hint
    check(host, "secret")


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_an_error_not_an_open_server(key):
    """X7"""
    with pytest.raises(ServerError, match="empty"):
        check("127.0.0.1", key)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("localhost:8000.evil.example", 403),
        ("localhost:evil", 403),
        ("[::1].evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.1.5", 403),
        ("", 403),
        ("localhost@evil.example", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_host_must_name_this_machine(host, expected, method):
    assert status(guard_of("127.0.0.1"), ("host", host), method=method) == expected


def test_two_host_headers_are_refused():
    assert status(guard_of("127.0.0.1"), LOCAL, ("host", "evil.example")) == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("gpu.lan", 200),
        ("GPU.lan:8000", 200),
        ("192.168.1.5:8000", 200),
        ("[fd00::1]:80", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("gpu.lan.evil.example", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "::"])
def test_allowed_hosts_are_the_only_names_besides_loopback(host, expected, bind):
    guard = guard_of(bind, "k", allowed_hosts=("gpu.lan", "192.168.1.5", "fd00::1"))
    key = ("x-api-key", "k")
    assert status(guard, ("host", host), key) == expected
    assert status(guard, LOCAL, ("origin", f"http://{host}"), key) == expected


def test_host_is_free_where_a_key_protects_the_server():
    guard = guard_of("0.0.0.0", "secret")
    assert status(guard, ("host", "gpu.lan:8000"), ("x-api-key", "secret")) == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("https://[::1]:8443", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://[", 403),
        ("null", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_pages_of_other_sites_can_not_post(origin, expected, bind):
    """X1: whatever is listened on."""
    guard = guard_of(bind, "k")
    sent = (LOCAL, ("origin", origin), ("x-api-key", "k"))
    assert status(guard, *sent) == expected
    assert status(guard, *sent, method="GET") == 200


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("content-type", "application/json"), 200),
        (("content-type", "Application/JSON; charset=utf-8"), 200),
        (("content-type", "text/plain"), 415),
        (("content-type", "application/x-www-form-urlencoded"), 415),
        (("content-type", "application/jsonp"), 415),
        (("content-encoding", "gzip"), 415),
        (("content-encoding", "identity"), 200),
    ],
)
def test_only_plain_json_is_taken(header, expected):
    guard = guard_of("127.0.0.1")
    assert status(guard, LOCAL, header) == expected
    assert status(guard, LOCAL, header, method="GET") == 200


KEY = "sk-ütf8"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("authorization", f"Bearer {KEY}")], 200),
        ([("authorization", f"bearer {KEY}")], 200),
        ([("authorization", f"BEARER   {KEY} ")], 200),
        ([("x-api-key", KEY)], 200),
        ([("x-api-key", "wrong"), ("authorization", f"Bearer {KEY}")], 200),
        ([("authorization", "Bearer wrong"), ("authorization", f"Bearer {KEY}")], 200),
        ([("authorization", KEY)], 401),
        ([("authorization", f"Basic {KEY}")], 401),
        ([("authorization", "Bearer")], 401),
        ([("authorization", f"Bearer {KEY}x")], 401),
        ([("x-api-key", "")], 401),
        ([("x-api-key", "\udcff")], 401),
        ([], 401),
    ],
)
def test_key(headers, expected):
    assert status(guard_of("127.0.0.1", KEY), LOCAL, *headers) == expected


def test_a_path_without_secrets_needs_no_key():
    assert status(guard_of("127.0.0.1", KEY), LOCAL, need=Need.NOTHING) == 200


def test_keys_are_compared_in_constant_time(monkeypatch, tmp_path):
    """X7: all that was sent is compared with all keys, by the constant-time function on bytes."""
    keys = [new_key(name, now=NOW)[0] for name in ("a", "b")]
    write_keys(tmp_path / "keys.toml", keys)
    guard = guard_of("127.0.0.1", "k", path=tmp_path / "keys.toml")
    compared = []

    def spy(left, right):
        compared.append((left, right))
        return len(compared) == 1  # the first one fits, and the others are compared all the same

    monkeypatch.setattr(hmac, "compare_digest", spy)
    sent = [("x-api-key", "ä"), ("authorization", "bearer b")]
    assert status(guard, LOCAL, *sent) == 200
    assert len(compared) == 2 * 3
    assert all(len(left) == len(right) == 32 for left, right in compared)
    assert all(isinstance(one, bytes) for pair in compared for one in pair)


# ---- keys of the file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.toml"


def keep(path, *names, **fields):
    """Write keys; what clients send for each."""
    made = [new_key(name, now=NOW, **fields) for name in names]
    write_keys(path, [key for key, _ in made])
    return [sent for _, sent in made]


def test_each_key_of_the_file_opens_the_models(path):
    sent = keep(path, "ann", "bob")
    guard = guard_of("127.0.0.1", path=path)
    for key, name in zip(sent, ("ann", "bob"), strict=True):
        assert status(guard, LOCAL, ("x-api-key", key)) == 200
        grant = guard.check("GET", Header([LOCAL, ("x-api-key", key)]), Need.INFERENCE)
        assert grant.key == name
    assert status(guard, LOCAL) == 401
    assert status(guard, LOCAL, ("x-api-key", sent[0][:-1])) == 401
    assert status(guard, LOCAL, ("x-api-key", "omlx-")) == 401


@pytest.mark.parametrize(
    ("scope", "need", "expected"),
    [
        (Scope.INFERENCE, Need.INFERENCE, 200),
        (Scope.INFERENCE, Need.KEY, 200),
        (Scope.INFERENCE, Need.ADMIN, 403),
        (Scope.ADMIN, Need.INFERENCE, 200),
        (Scope.ADMIN, Need.KEY, 200),
        (Scope.ADMIN, Need.ADMIN, 200),
    ],
)
def test_scopes(path, scope, need, expected):
    """X4: the admin surface needs a credential of its own."""
    (sent,) = keep(path, "one", scope=scope)
    guard = guard_of("0.0.0.0", path=path)
    assert status(guard, LAN, ("x-api-key", sent), need=need) == expected
    assert status(guard, LAN, need=need) in (401, 403)
    assert status(guard, LAN, need=Need.NOTHING) == 200


def test_the_key_of_the_settings_is_an_admins(path):
    keep(path, "one")
    guard = guard_of("0.0.0.0", "own", path=path)
    grant = guard.check("GET", Header([LAN, ("x-api-key", "own")]), Need.ADMIN)
    assert grant.key == ""  # one key for all is no tenant
    assert grant.identity


def test_without_an_admin_key_the_admin_api_is_off(path):
    keep(path, "one")
    guard = guard_of("0.0.0.0", path=path)
    with pytest.raises(ApiError, match="is off") as caught:
        guard.check("GET", Header([LAN]), Need.ADMIN)
    assert caught.value.status == 403


def test_a_key_that_has_expired_opens_nothing(path):
    past, future = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    (sent,) = keep(path, "old", expires=past)
    guard = guard_of("127.0.0.1", path=path)
    assert status(guard, LOCAL, ("x-api-key", sent)) == 401
    assert status(guard, LOCAL) == 401
    (sent,) = keep(path, "new", expires=future)
    assert status(guard, LOCAL, ("x-api-key", sent)) == 200


def test_a_changed_file_is_read_again(path, caplog):
    guard = guard_of("127.0.0.1", path=path)
    assert status(guard, LOCAL) == 200
    (old,) = keep(path, "one")
    assert status(guard, LOCAL) == 401
    assert status(guard, LOCAL, ("x-api-key", old)) == 200
    (new,) = keep(path, "one")
    assert status(guard, LOCAL, ("x-api-key", old)) == 401
    assert status(guard, LOCAL, ("x-api-key", new)) == 200
    path.write_text("broken")
    assert status(guard, LOCAL, ("x-api-key", new)) == 200
    assert status(guard, LOCAL) == 401
    assert "stay as they were" in caplog.text
    assert len(caplog.records) == 1, "said once"


def test_a_server_that_had_keys_stays_locked_without_them(path):
    keep(path, "one")
    guard = guard_of("127.0.0.1", path=path)
    write_keys(path, [])
    assert status(guard, LOCAL) == 401
    path.unlink()
    assert status(guard, LOCAL) == 401


def test_a_broken_or_open_file_stops_the_start(path):
    path.write_text("broken")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="keys.toml"):
        check("127.0.0.1", path=path)
    keep(path, "one")
    path.chmod(0o640)
    with pytest.raises(SettingsError, match="other users"):
        check("127.0.0.1", path=path)


def test_a_new_key_of_an_old_name_is_another_one(path):
    identities = set()
    for _ in range(2):
        (sent,) = keep(path, "one")
        guard = guard_of("127.0.0.1", path=path)
        grant = guard.check("GET", Header([LOCAL, ("x-api-key", sent)]), Need.INFERENCE)
        identities.add(grant.identity)
        assert sent not in grant.identity
    assert len(identities) == 2


def test_limits_come_with_the_key(path):
    limits = Limits(1, 2, 3)
    (sent,) = keep(path, "one", limits=limits)
    guard = guard_of("127.0.0.1", path=path)
    grant = guard.check("GET", Header([LOCAL, ("x-api-key", sent)]), Need.INFERENCE)
    assert grant.limits == limits


# ---- switches


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_keys_are_asked_for_wherever_others_can_connect(host, path):
    """X3"""
    with pytest.raises(ServerError, match="skip_api_key_verification"):
        check(host, "secret", skip_api_key_verification=True)
    check(host, allow_unauthenticated_inference=True)
    keep(path, "one")
    check(host, path=path)


def test_keys_can_be_left_alone_on_this_machine():
    guard = guard_of("127.0.0.1", "secret", skip_api_key_verification=True)
    assert status(guard, LOCAL, need=Need.ADMIN) == 200


def test_models_for_everyone_and_nothing_else(path):
    guard = guard_of("0.0.0.0", path=path, allow_unauthenticated_inference=True)
    assert status(guard, LAN) == 200
    assert status(guard, LAN, ("x-api-key", "whatever")) == 200
    assert status(guard, LAN, need=Need.ADMIN) == 403
    assert status(guard, LAN, need=Need.KEY) == 401
    (sent,) = keep(path, "boss", scope=Scope.ADMIN)
    assert status(guard, LAN, need=Need.ADMIN) == 401
    assert status(guard, LAN, ("x-api-key", sent), need=Need.ADMIN) == 200


@pytest.mark.parametrize(
    ("path", "need"),
    [
        ("/", Need.NOTHING),
        ("/health", Need.NOTHING),
        ("/v1/models", Need.INFERENCE),
        ("/v1/models/x/load", Need.INFERENCE),
        ("/metrics", Need.METRICS),
        ("/metrics/", Need.KEY),
        ("/health/", Need.KEY),
        ("/nothing", Need.KEY),
        ("/admin/api/keys", Need.ADMIN),
        ("/admin/nothing", Need.ADMIN),
        ("/admin/sessions", Need.ADMIN),
        ("/administrator", Need.ADMIN),
        ("/admin", Need.NOTHING),
        ("/admin/", Need.NOTHING),
        ("/admin/page/app.css", Need.NOTHING),
        ("/admin/session", Need.NOTHING),
    ],
)
def test_what_routes_need(path, need):
    assert need_of(path) is need


def asks(guard, *headers, need):
    return status(guard, LOCAL, *headers, need=need, method="GET")


@pytest.mark.parametrize("api_key", [None, "secret"])
def test_metrics_may_have_a_key_of_their_own(api_key):
    guard = guard_of("127.0.0.1", api_key, metrics_key=" scrape ")
    bearer = ("authorization", "Bearer scrape")
    assert asks(guard, need=Need.METRICS) == 401
    assert asks(guard, ("x-api-key", "wrong"), need=Need.METRICS) == 401
    assert asks(guard, bearer, need=Need.METRICS) == 200
    assert asks(guard, ("x-api-key", "scrape"), need=Need.METRICS) == 200
    if api_key is None:  # all else is open as before
        assert asks(guard, need=Need.ADMIN) == 200
        return
    assert asks(guard, ("x-api-key", api_key), need=Need.METRICS) == 200
    for need in (Need.INFERENCE, Need.KEY, Need.ADMIN):
        assert asks(guard, bearer, need=need) == 401


def test_metrics_need_the_key_when_there_is_one(path):
    assert asks(guard_of("127.0.0.1"), need=Need.METRICS) == 200
    guard = guard_of("127.0.0.1", "secret")
    assert asks(guard, need=Need.METRICS) == 401
    assert asks(guard, ("x-api-key", "secret"), need=Need.METRICS) == 200
    open_to_all = guard_of("0.0.0.0", "secret", allow_unauthenticated_inference=True)
    assert status(open_to_all, LAN, need=Need.METRICS, method="GET") == 401
    skipped = guard_of("127.0.0.1", "s", metrics_key="m", skip_api_key_verification=True)
    assert asks(skipped, need=Need.METRICS) == 200
    (sent,) = keep(path, "one")
    assert asks(guard_of("127.0.0.1", path=path), ("x-api-key", sent), need=Need.METRICS) == 200


def test_a_key_of_metrics_opens_no_address():
    with pytest.raises(ServerError, match="needs an API key"):
        check("0.0.0.0", metrics_key="m")
    with pytest.raises(ServerError, match=r"server\.metrics_key is empty") as caught:
        check("127.0.0.1", metrics_key=" ")
    assert "OMLX_SERVER_METRICS_KEY" in caught.value.hint


# ---- names and pages


def test_a_rebound_name_is_no_page_of_this_server():
    guard = guard_of("0.0.0.0", allow_unauthenticated_inference=True)
    sent = (("host", "evil.example:8000"), ("origin", "http://evil.example:8000"))
    assert status(guard, *sent) == 403


def test_a_unix_socket_is_of_this_machine(path, tmp_path):
    socket = tmp_path / "s"
    check("0.0.0.0", unix_socket=socket)
    guard = guard_of("0.0.0.0", unix_socket=socket)
    assert status(guard, ("host", "anything")) == 200
    assert status(guard, ("host", "anything"), ("origin", "https://evil.example")) == 403
