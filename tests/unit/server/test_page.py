"""The admin page over HTTP: its files and headers, signing in and out, and what other pages can."""

import re
import socket
from datetime import UTC, datetime

import httpx
import pytest

from omlx.server.page.assets import FOLDER, read_assets
from omlx.server.signin import PROOF_HEADER, WRONG_BY_ADDRESS
from omlx.settings.keys import Scope, change_keys, new_key, read_keys, with_key, without_key
from omlx.settings.schema import Server
from tests.fakes.server import Plan, running

API = "/admin/api/status"


class Keys:
    def __init__(self, path):
        self.path = path
        self.sent = {}

    def add(self, name, scope):
        key, self.sent[name] = new_key(name, now=datetime.now(UTC), scope=scope)
        change_keys(self.path, with_key(key))


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    kept = Keys(tmp_path_factory.mktemp("home") / "keys.toml")
    kept.add("boss", Scope.ADMIN)
    kept.add("ann", Scope.INFERENCE)
    return kept


@pytest.fixture(scope="module")
def locked(keys):
    with running(Plan(keys_path=keys.path)) as server:
        yield server


@pytest.fixture
def browser(locked):
    """A client of its own, with cookies; the limit of wrong keys is as new."""
    with httpx.Client(base_url=locked.url) as client:
        yield client


def sign_in(browser, key):
    answer = browser.post("/admin/session", json={"key": key})
    if answer.status_code == 200:
        browser.headers[PROOF_HEADER] = answer.json()["proof"]
    return answer


# ---- files and headers


def policy_of(response):
    parts = response.headers["content-security-policy"].split(";")
    return {name: values for name, *values in (part.split() for part in parts)}


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/page/app/main.js", "/admin/page/x"])
def test_the_page_is_strict_about_what_runs_in_it(locked, path):
    answer = locked.stranger.get(path)
    policy = policy_of(answer)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert policy["default-src"] == ["'none'"]
    assert policy["frame-ancestors"] == ["'none'"]
    assert policy["base-uri"] == policy["form-action"] == ["'none'"]
    assert policy["require-trusted-types-for"] == ["'script'"]
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert policy[name] == ["'self'"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


def test_answers_of_the_api_are_still_no_page(locked, keys):
    answer = locked.http.get(API, headers={"x-api-key": keys.sent["boss"]})
    assert policy_of(answer)["default-src"] == ["'none'"]
    assert "script-src" not in policy_of(answer)
    assert answer.headers["cache-control"] == "no-store"


def test_every_file_is_sent_with_its_type(locked):
    types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
             ".json": "application/json", ".svg": "image/svg+xml"}  # fmt: skip
    for name in read_assets():
        answer = locked.stranger.get(f"/admin/page/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(types["." + name.rpartition(".")[2]])
        assert answer.content == (FOLDER / name).read_bytes()
    assert locked.stranger.get("/admin").content == (FOLDER / "index.html").read_bytes()
    assert locked.stranger.head("/admin").status_code == 200


def test_a_file_that_has_not_changed_is_not_sent_again(locked):
    first = locked.stranger.get("/admin/page/app.css")
    etag = {"if-none-match": first.headers["etag"]}
    again = locked.stranger.get("/admin/page/app.css", headers=etag)
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name", ["../assets.py", "..%2fassets.py", "%2e%2e/assets.py", "../../../app.py", "nothing", ""]
)
def test_nothing_but_its_files_is_sent(locked, name):
    # httpx would make the path shorter by itself.
    with socket.create_connection(("127.0.0.1", locked.port)) as connection:
        rest = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(f"GET /admin/page/{name} {rest}".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split()[1] in (b"401", b"404")
    assert b"import" not in answer


def test_the_page_needs_no_other_host_and_nothing_inline():
    for name, asset in read_assets().items():
        text = asset.data.decode()
        urls = [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if "w3.org" not in url]
        assert not urls, f"{name} names {urls}"
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                     "new Function", ".style.", "setAttribute(\"style\""):  # fmt: skip
            assert word not in text, f"{name} has {word}"
        if name.endswith(".html"):
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
        if name.endswith(".css"):
            assert "@import" not in text and "url(" not in text


# ---- signing in


def test_the_way_in_and_out(browser, keys):
    assert browser.get("/admin/session").json() | {"version": ""} == {
        "version": "", "is_open": False, "is_signed_in": False, "can_sign_in": True,
    }  # fmt: skip
    assert browser.get(API).status_code == 401
    answer = sign_in(browser, keys.sent["boss"])
    assert answer.status_code == 200
    assert keys.sent["boss"] not in answer.text + str(answer.headers)
    cookie = answer.headers["set-cookie"]
    assert re.match(r"omlx-admin-\d+=[\w-]{43}; Path=/admin; ", cookie)
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    assert browser.get(API).status_code == 200
    assert browser.get("/admin/session").json()["is_signed_in"] is True
    before = dict(browser.cookies)
    out = browser.delete("/admin/session")
    assert out.json() == {"is_signed_in": False}
    assert "Max-Age=0" in out.headers["set-cookie"]
    browser.cookies.update(before)
    assert browser.get(API).status_code == 401


def test_the_cookie_is_secure_where_the_server_speaks_tls(tmp_path, keys):
    from tests.unit.server.test_tls import CERT, KEY

    plan = Plan(server=Server(port=0, tls_cert=CERT, tls_key=KEY), keys_path=keys.path)
    with running(plan) as server:
        answer = server.http.post("/admin/session", json={"key": keys.sent["boss"]})
        assert "; Secure" in answer.headers["set-cookie"]


def test_a_session_opens_the_admin_api_only(browser, keys):
    sign_in(browser, keys.sent["boss"])
    assert browser.get("/v1/models").status_code == 401
    assert browser.get("/metrics").status_code == 401
    assert browser.post("/v1/models/fake/load").status_code == 401


@pytest.mark.parametrize("half", ["cookie", "proof"])
def test_half_of_a_session_is_nothing(browser, keys, half):
    sign_in(browser, keys.sent["boss"])
    if half == "cookie":
        del browser.headers[PROOF_HEADER]
    else:
        browser.cookies.clear()
    for method, path in (("GET", API), ("POST", "/admin/api/cache/prune")):
        assert browser.request(method, path, json={"everything": True}).status_code == 401


def test_a_wrong_key_that_was_sent_is_not_made_good_by_a_session(browser, keys):
    sign_in(browser, keys.sent["boss"])
    assert browser.get(API, headers={"x-api-key": "wrong"}).status_code == 401
    assert browser.get(API, headers={"x-api-key": keys.sent["ann"]}).status_code == 403


def test_only_admin_keys_sign_in(browser, keys):
    answer = sign_in(browser, keys.sent["ann"])
    assert answer.status_code == 403
    assert "scope" in answer.json()["error"]["message"]
    assert "set-cookie" not in answer.headers


def test_wrong_keys_are_refused_and_then_have_to_wait(keys):
    with running(Plan(keys_path=keys.path)) as server:
        for _ in range(WRONG_BY_ADDRESS):
            answer = server.stranger.post("/admin/session", json={"key": "sk-wrong"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "wrong_key")
            assert "sk-wrong" not in answer.text
            assert "set-cookie" not in answer.headers
        late = server.stranger.post("/admin/session", json={"key": keys.sent["boss"]})
        assert late.status_code == 429
        assert 1 <= int(late.headers["retry-after"]) <= 60


def test_a_server_without_an_admin_key_says_so(tmp_path):
    keys = Keys(tmp_path / "keys.toml")
    keys.add("ann", Scope.INFERENCE)
    with running(Plan(keys_path=keys.path)) as server:
        assert server.http.get("/admin/session").json()["can_sign_in"] is False
        answer = server.http.post("/admin/session", json={"key": "anything"})
        assert answer.status_code == 403
        assert "off" in answer.json()["error"]["message"]


def test_an_open_server_needs_no_session_until_it_has_a_key(tmp_path):
    keys = Keys(tmp_path / "keys.toml")
    with running(Plan(keys_path=keys.path)) as server:
        assert server.http.get("/admin/session").json()["is_open"] is True
        assert server.http.get(API).status_code == 200
        keys.add("boss", Scope.ADMIN)
        assert server.http.get(API).status_code == 401
        assert server.http.get("/admin/session").json()["is_open"] is False


def test_a_key_that_is_revoked_ends_its_sessions(tmp_path):
    keys = Keys(tmp_path / "keys.toml")
    keys.add("boss", Scope.ADMIN)
    keys.add("other", Scope.ADMIN)
    with running(Plan(keys_path=keys.path)) as server:
        sign_in(server.http, keys.sent["boss"])
        assert server.http.get(API).status_code == 200
        change_keys(keys.path, without_key("boss"))
        assert server.http.get(API).status_code == 401


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"key": 1}', b'{"key": "a", "b": 1}', b"{"])
def test_a_body_that_is_none_is_refused(browser, body):
    headers = {"content-type": "application/json"}
    answer = browser.post("/admin/session", content=body, headers=headers)
    assert answer.status_code == 400


def test_a_body_that_is_too_large_is_refused(browser):
    assert browser.post("/admin/session", json={"key": "x" * 100_000}).status_code == 413


# ---- what other pages can't do

FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    # A page on another port of this machine: its origin is a loopback address as well.
    {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"},
]
CHANGES = [
    ("POST", "/admin/api/cache/prune"),
    ("POST", "/admin/api/models/unload"),
    ("POST", "/admin/api/pulls"),
    ("DELETE", "/admin/api/pulls/1"),
    ("POST", "/admin/api/settings/server.port"),
    ("DELETE", "/admin/api/settings/server.port"),
    ("POST", "/admin/api/keys"),
    ("DELETE", "/admin/api/keys/ann"),
    ("POST", "/admin/session"),
    ("DELETE", "/admin/session"),
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_pages_of_others_change_nothing(browser, keys, headers, method, path):
    sign_in(browser, keys.sent["boss"])
    answer = browser.request(method, path, json={"everything": True}, headers=headers)
    assert answer.status_code == 403
    assert browser.get(API).status_code == 200
    assert len(read_keys(keys.path)) == 2


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded",
                                  "multipart/form-data; boundary=x"])  # fmt: skip
def test_forms_of_others_change_nothing(browser, keys, kind):
    """What a browser sends across origins without asking before."""
    sign_in(browser, keys.sent["boss"])
    for method, path in CHANGES[:2]:
        answer = browser.request(
            method, path, content=b'{"everything":true}', headers={"content-type": kind}
        )
        assert answer.status_code == 415


def test_an_open_server_is_closed_to_pages_on_other_ports():
    with running() as server:
        for headers in FOREIGN:
            for method, path in CHANGES[:8]:
                answer = server.http.request(
                    method, path, json={"everything": True}, headers=headers
                )
                assert answer.status_code == 403
