"""Which pages may ask a server, what browsers are told, and the headers of every answer."""

import socket

import pytest

from omlx.errors import ServerError
from omlx.server.origin import SECURE_HEADERS, check_origins
from omlx.settings.schema import Server
from tests.fakes.engine import PATIENCE_S, say
from tests.fakes.server import Plan, running

PAGE = "https://app.example"
ASKS = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type, x-api-key",
}
PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/models", "/admin/api/status", "/nope"]


@pytest.fixture(scope="module")
def open_to_page():
    server = Server(port=0, api_key="sk-secret", cors_origins=(PAGE, "http://[::1]:5000"))
    with running(Plan(server=server)) as server:
        server.http.headers["x-api-key"] = "sk-secret"
        yield server


def allowed(response):
    return {name for name in response.headers if name.startswith("access-control-")}


@pytest.mark.parametrize("path", PATHS)
def test_a_page_that_is_listed_may_ask_before_a_call(open_to_page, path):
    """X1: without a key, since browsers send none; for exactly that origin."""
    answer = open_to_page.stranger.options(path, headers={"origin": PAGE, **ASKS})
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-headers"] == "content-type, x-api-key"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "*",
        "http://app.example",
        PAGE + "/",
        PAGE.upper(),
        PAGE[:-1],
    ],
)
def test_other_pages_are_told_nothing(open_to_page, origin):
    """X1"""
    answer = open_to_page.stranger.options(PATHS[0], headers={"origin": origin, **ASKS})
    assert answer.status_code == 401
    assert not allowed(answer)
    answer = open_to_page.http.post(PATHS[0], json={}, headers={"origin": origin})
    assert answer.status_code == 403
    assert not allowed(answer)
    assert answer.headers["vary"] == "Origin"


def test_two_origins_are_none(open_to_page):
    headers = [("origin", PAGE), ("origin", PAGE), *ASKS.items()]
    assert not allowed(open_to_page.stranger.options(PATHS[0], headers=headers))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_page_that_is_listed_can_read_answers(open_to_page, is_stream):
    open_to_page.engine.script = say("ok")
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": is_stream}
    answer = open_to_page.http.post(PATHS[0], json=body, headers={"origin": PAGE})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = open_to_page.stranger.post(PATHS[0], json=body, headers={"origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
    plain = open_to_page.http.post(PATHS[0], json=body)
    assert not allowed(plain)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", PAGE])
def test_no_page_is_told_anything_by_default(server, origin):
    """X1"""
    for answer in (
        server.http.options(PATHS[0], headers={"origin": origin, **ASKS}),
        server.http.get("/v1/models", headers={"origin": origin}),
    ):
        assert not allowed(answer)
        assert "vary" not in answer.headers


def test_a_question_needs_a_name_of_this_server(open_to_page):
    headers = {"origin": PAGE, "host": "evil.example", **ASKS}
    assert open_to_page.stranger.options(PATHS[0], headers=headers).status_code == 403


def secure(headers):
    return [headers.get(name) for name, _ in SECURE_HEADERS] == [one for _, one in SECURE_HEADERS]


def test_every_answer_has_the_secure_headers(server):
    answers = [server.http.get(path) for path in (*PATHS, "/", "/health", "/metrics")]
    answers += [server.http.head("/"), server.http.options("/"), server.http.delete("/v1/models")]
    answers += [server.chat(), server.chat(stream=True), server.message(stream=True)]
    answers += [server.http.post(PATHS[0], content=b"{"), server.chat(n="x")]
    answers += [server.http.get("/", headers={"host": "evil.example"})]
    for answer in answers:
        assert secure(answer.headers), answer.url
    stream = server.chat(stream=True)
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    "head", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\r\n\r\n"]
)
def test_so_has_what_answers_no_http(server, head):
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(head)
        answer = b""
        while more := sock.recv(65536):
            answer += more
    for name, value in SECURE_HEADERS:
        assert f"{name}: {value}".encode() in answer


@pytest.mark.parametrize("name", ["", "a:80", "http://a", "*", "*.lan", "a/b", "[]"])
def test_what_is_no_host_name(name):
    with pytest.raises(ServerError, match="allowed_hosts"):
        check_origins([name], [])


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example", PAGE + "/", PAGE.upper(), "https://*.example", "file://"]
)
def test_what_is_no_origin(origin):
    with pytest.raises(ServerError, match="cors_origins"):
        check_origins([], [origin])


def test_a_server_with_a_wrong_origin_does_not_start():
    with (
        pytest.raises(ServerError, match="there is no|no origin"),
        running(Plan(server=Server(port=0, cors_origins=("*",)))),
    ):
        pass
