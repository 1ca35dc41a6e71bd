import hmac

import pytest
from sanic.compat import Header

from omlx.errors import ServerError
from omlx.server import auth
from omlx.server.auth import check_bind
from omlx.server.errors import ApiError
from omlx.server.origin import Origins, is_loopback

LOCAL = ("host", "127.0.0.1:8000")


def Guard(host, key, *, hosts=(), origins=()):
    return auth.Guard(Origins(host, hosts, origins), key)


def status(guard, *headers, method="POST", needs_key=True):
    """200, or the status of the refusal."""
    try:
        guard.check(method, Header(headers), needs_key=needs_key)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "127.9.9.9"])
def test_loopback_hosts_need_no_key(host):
    assert is_loopback(host)
    check_bind(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_other_hosts_need_a_key(host):
    """X3"""
    with pytest.raises(ServerError, match="API key") as caught:
        check_bind(host, None)
    assert "OMLX_SERVER_API_KEY" in caught.value.hint
    check_bind(host, "secret")


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_an_error_not_an_open_server(key):
    """X7"""
    with pytest.raises(ServerError, match="empty"):
        check_bind("127.0.0.1", key)


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
    assert status(Guard("127.0.0.1", None), ("host", host), method=method) == expected


def test_two_host_headers_are_refused():
    assert status(Guard("127.0.0.1", None), LOCAL, ("host", "evil.example")) == 403


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
    guard = Guard(bind, None, hosts=("gpu.lan", "192.168.1.5", "fd00::1"))
    assert status(guard, ("host", host)) == expected
    assert status(guard, LOCAL, ("origin", f"http://{host}")) == expected


def test_host_is_free_where_a_key_protects_the_server():
    guard = Guard("0.0.0.0", "secret")
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
    guard = Guard(bind, None)
    assert status(guard, LOCAL, ("origin", origin)) == expected
    assert status(guard, LOCAL, ("origin", origin), method="GET") == 200


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
    guard = Guard("127.0.0.1", None)
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
    assert status(Guard("127.0.0.1", KEY), LOCAL, *headers) == expected


def test_a_path_without_secrets_needs_no_key():
    assert status(Guard("127.0.0.1", KEY), LOCAL, needs_key=False) == 200


def test_keys_are_compared_in_constant_time(monkeypatch):
    """X7: every key that was sent goes through the constant-time function, as bytes."""
    compared = []

    def spy(left, right):
        compared.append((left, right))
        return False

    monkeypatch.setattr(hmac, "compare_digest", spy)
    sent = [("x-api-key", "a"), ("authorization", "Bearer b")]
    assert status(Guard("127.0.0.1", "k"), LOCAL, *sent) == 401
    assert sorted(compared) == [(b"a", b"k"), (b"b", b"k")]
