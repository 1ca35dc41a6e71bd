"""Bodies and names that are meant to do harm: refused with a clear error, before any work."""

import json
import logging
import os
import socket
import sys

import psutil
import pytest

from omlx.server.shape import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from tests.fakes.engine import PATIENCE_S, say

BIG = 200_000_000
MESSAGE = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
ROUTES = {
    "/v1/chat/completions": {"model": "fake", "messages": [MESSAGE]},
    "/v1/completions": {"model": "fake", "prompt": "hi"},
    "/v1/messages": {"model": "fake", "max_tokens": 9, "messages": [MESSAGE]},
    "/v1/messages/count_tokens": {"model": "fake", "messages": [MESSAGE]},
    "/v1/responses": {"model": "fake", "input": "hi"},
}
PATHS = list(ROUTES)


def is_error(response, path, *statuses) -> str:
    """Check status and shape; the message."""
    assert response.status_code in statuses, response.text[:300]
    error = response.json()["error"]
    if path.startswith("/v1/messages"):
        assert response.json()["type"] == "error"
    else:
        assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(response.content) < 2000
    return error["message"]


def works(server) -> None:
    server.engine.script = say("ok")
    assert server.chat().status_code == 200


@pytest.fixture
def no_growth():
    """The process may not grow by much more than one body that is taken."""
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    yield
    grown = process.memory_info().rss - before
    assert grown < 300_000_000, f"{grown} bytes more"


# ---- K24: size


@pytest.mark.parametrize("path", PATHS)
def test_k24_200_mb_with_an_honest_length(server, path, no_growth):
    parts = (b"x" * 1_000_000 for _ in range(BIG // 1_000_000))  # the client holds none of it
    headers = {"Content-Length": str(BIG)}
    response = server.http.post(path, content=parts, headers=headers)
    assert "32000000 bytes" in is_error(response, path, 413)


def test_k24_200_mb_without_a_length(server, no_growth):
    sent = 0

    def parts():
        nonlocal sent
        for _ in range(BIG // 1_000_000):
            sent += 1_000_000
            yield b"x" * 1_000_000

    try:
        response = server.http.post(PATHS[0], content=parts())
    except OSError:
        pass
    except Exception as error:
        assert type(error).__name__ in ("WriteError", "ReadError", "RemoteProtocolError")
    else:
        is_error(response, PATHS[0], 413)
    assert sent <= BIG
    works(server)


def test_k24_a_length_that_is_a_lie(server):
    """Larger: answered at once. Smaller: the rest is no request."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    assert b" 413 " in exchange(server, head % BIG + b"{"), "before the rest of it came"
    answer = exchange(server, head % 2 + b"{}" + b"x" * 1000 + b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 400") >= 1
    assert b"HTTP/1.1 200" not in answer
    works(server)


@pytest.mark.parametrize(
    "length", ["-1", "+1", "1e3", "0x10", "1, 2", "", "9" * 50, "1\r\nContent-Length: 2"]
)
def test_k24_a_length_that_is_none(server, length):
    head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    answer = exchange(server, head.encode() + b"{}")
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 413"), answer[:200]


@pytest.mark.parametrize("value", [b"x", b"\xff", b"Q\xbex5\x01", b"100-continue, x"])
def test_a_header_of_any_bytes_may_be_quoted(server, value):
    head = b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: "
    answer = exchange(server, head + value + b"\r\n\r\n{x}")
    assert answer[9:12] in (b"417", b"400"), answer[:100]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_k24_both_a_length_and_parts(server):
    """Two readings of where a request ends let one be hidden in another."""
    head = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(server, head + b"0\r\n\r\n" + hidden)
    assert b'"object":"list"' not in answer


def exchange(server, data: bytes) -> bytes:
    """Send bytes and no more, read until the server closes."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.settimeout(2)
        try:
            sock.sendall(data)
            while more := sock.recv(65536):
                received += more
        except (ConnectionError, TimeoutError):
            pass
    return received


@pytest.mark.parametrize("coding", ["gzip", "zstd", "br", "deflate", "gzip, gzip", "GZIP"])
@pytest.mark.parametrize("path", PATHS)
def test_k24_compressed_bodies(server, path, coding):
    response = server.http.post(path, content=b"\x1f\x8b", headers={"content-encoding": coding})
    assert "encoding" in is_error(response, path, 415)


# ---- K24: counts and depth


def filled(path: str, field: str, value: object) -> bytes:
    return json.dumps({**ROUTES[path], field: value}).encode()


@pytest.mark.parametrize("path", [path for path in PATHS if "messages" in ROUTES[path]])
def test_k24_a_million_messages(server, path, no_growth):
    body = b'{"model":"fake","max_tokens":1,"messages":['
    body += b",".join([b'{"role":"user","content":""}'] * 1_000_000) + b"]}"
    assert "at most 250000" in is_error(server.http.post(path, content=body), path, 400)
    works(server)


@pytest.mark.parametrize(
    ("path", "field", "limit", "item"),
    [
        ("/v1/chat/completions", "messages", MAX_MESSAGES, MESSAGE),
        ("/v1/messages", "messages", MAX_MESSAGES, MESSAGE),
        ("/v1/responses", "input", MAX_MESSAGES, MESSAGE),
        ("/v1/chat/completions", "tools", MAX_TOOLS, TOOL),
        ("/v1/messages", "tools", MAX_TOOLS, {"name": "f", "input_schema": {}}),
        ("/v1/responses", "tools", MAX_TOOLS, {"type": "function", "name": "f"}),
    ],
)
def test_k24_limits_are_named_with_their_field(server, path, field, limit, item):
    message = is_error(
        server.http.post(path, content=filled(path, field, [item] * (limit + 1))), path, 400
    )
    assert str(limit) in message
    assert f"`$.{field}`" in message
    before = len(server.engine.submitted)
    response = server.http.post(path, content=filled(path, field, [item] * limit))
    assert f"length <= {limit}" not in response.text
    assert len(server.engine.submitted) >= before


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_k24_too_many_parts(server, path):
    parts = [{"type": "text", "text": "a"}] * (MAX_PARTS + 1)
    body = filled(path, "messages", [{"role": "user", "content": parts}])
    message = is_error(server.http.post(path, content=body), path, 400)
    assert str(MAX_PARTS) in message
    assert "`$.messages[0].content`" in message


@pytest.mark.parametrize("path", PATHS)
def test_k24_10k_deep_json(server, path):
    body = json.dumps(ROUTES[path]).encode()[:-1] + b',"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    assert "at most 128 levels" in is_error(server.http.post(path, content=body), path, 400)
    assert "at most 128 levels" in is_error(
        server.http.post(path, content=b'{"a":' * 10_000), path, 400
    )


def images(kind: str, num: int) -> list[dict[str, object]]:
    url = "data:image/png;base64,AAAA"
    one: dict[str, object] = {
        "/v1/chat/completions": {"type": "image_url", "image_url": {"url": url}},
        "/v1/messages": {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        },
        "/v1/responses": {"type": "input_image", "image_url": url},
    }[kind]
    return [one] * num


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_k24_1000_images(server, path):
    field = "input" if path == "/v1/responses" else "messages"
    content = images(path, 1000)
    body = filled(path, field, [{"role": "user", "content": content}])
    is_error(server.http.post(path, content=body), path, 400)


# ---- K24: values


@pytest.mark.parametrize("number", [b"1e12", b"1000000000000", b"9223372036854775808", b"1e300"])
@pytest.mark.parametrize("path", PATHS[:3])
def test_k24_a_budget_beyond_all_windows(server, path, number):
    """It is what the window leaves, or an error; never a huge allocation."""
    server.engine.script = say("ok")
    body = json.dumps({**ROUTES[path], "max_tokens": 12345}).encode().replace(b"12345", number)
    response = server.http.post(path, content=body)
    if response.status_code == 200:
        assert server.engine.submitted[-1].max_tokens <= 1000
    else:
        is_error(response, path, 400)


@pytest.mark.parametrize(
    "text", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"nan", b"0x1", b"01", b"+1", b".5"]
)
@pytest.mark.parametrize("path", PATHS)
def test_k24_numbers_that_are_none(server, path, text):
    body = json.dumps({**ROUTES[path], "temperature": 12345}).encode().replace(b"12345", text)
    response = server.http.post(path, content=body)
    if path.endswith("count_tokens") and text == b"1e999":
        assert response.status_code in (200, 400)
    else:
        is_error(response, path, 400)


@pytest.mark.parametrize("path", PATHS)
def test_k24_duplicate_keys(server, path):
    """The last one counts, as in most parsers; nothing breaks."""
    server.engine.script = say("ok")
    body = json.dumps(ROUTES[path]).encode()
    twice = b'{"model":"nope",' + body[1:]
    assert server.http.post(path, content=twice).status_code == 200
    assert "nope" in is_error(
        server.http.post(path, content=body[:-1] + b',"model":"nope"}'), path, 404
    )


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x00"]
)
@pytest.mark.parametrize("path", PATHS)
def test_k24_what_is_not_utf_8(server, path, bad):
    body = json.dumps(ROUTES[path]).encode().replace(b'"hi"', b'"' + bad + b'"')
    is_error(server.http.post(path, content=body), path, 400)


@pytest.mark.parametrize("path", PATHS)
def test_k24_no_content_type_is_taken_as_json(server, path):
    server.engine.script = say("ok")
    body = json.dumps(ROUTES[path]).encode()
    request = server.http.build_request("POST", path, content=body)
    request.headers.pop("content-type", None)
    assert server.http.send(request).status_code == 200


# ---- names of models


NAMES = [
    "../fake", "../../etc/passwd", "/etc/passwd", "..", ".", "a/../../b", "fake\0", "\0",
    "%2e%2e%2fetc", "..%2f..%2fetc%2fpasswd", "....//....//etc", "C:\\windows", "\\\\host\\share",
    "file:///etc/passwd", "x" * 10_000, "fake/../fake", "~root", "$HOME", "fake;ls",
    "\u202efake", "\ud83d\ude00" * 3, " fake",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=[str(n) for n in range(len(NAMES))])
def test_names_that_lead_elsewhere(server, name, files):
    """Nothing is looked up on disk by what a client calls a model."""
    for path, fields in ROUTES.items():
        body = json.dumps({**fields, "model": name}).encode()
        message = is_error(server.http.post(path, content=body), path, 400, 404)
        assert "root:" not in message
    strange = [one for one in files if "etc" in one.split("/") or "passwd" in one or name in one]
    assert not [one for one in strange if len(name) > 4 or one == name]


@pytest.fixture
def files(audited):
    """The files that any thread of this process opens or lists during a test."""
    audited.clear()
    return audited


@pytest.fixture(scope="module")
def audited():
    touched: list[str] = []
    watching = [True]

    def watch(event: str, args: tuple[object, ...]) -> None:
        if watching[0] and event in ("open", "os.listdir", "os.scandir"):
            touched.append(str(args[0]))

    sys.addaudithook(watch)
    yield touched
    watching[0] = False


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/../../etc/passwd", "/v1/models/%2e%2e/%2e%2e/etc/passwd",
        "/v1/models/..%2f..%2fetc", "/v1/models//etc/passwd", "/v1/models/%00",
        "/v1/models/fake%00", "/v1/models/%ff%fe", "/v1/models/" + "x" * 7000,
        "/../../etc/passwd", "//etc/passwd", "/%2e%2e/etc/passwd", "/v1/models/%",
        "/v1/models/%zz", "/v1/responses/..%2f..%2fx", "/v1/models/../load",
        "/admin/api/../../etc/passwd",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_paths_that_lead_elsewhere(server, target, method):
    length = "Content-Length: 0\r\n" if method == "POST" else ""
    data = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}Connection: close\r\n\r\n"
    answer = exchange(server, data.encode())
    assert answer[9:12] in (b"400", b"404", b"405"), answer[:300]
    assert b"root:" not in answer
    works(server)


# ---- X6: addresses of images


@pytest.mark.parametrize(
    "url",
    [
        "/etc/hosts", "file:///etc/hosts", "http://127.0.0.1:{port}/",
        "http://169.254.169.254/latest", "http://localhost:{port}/x", "https://[::1]:{port}/",
        "ftp://127.0.0.1/", "gopher://127.0.0.1:{port}/",
    ],
)  # fmt: skip
def test_case_x6_addresses_of_images_are_never_asked(server, url):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = url.replace("{port}", str(listener.getsockname()[1]))
        parts = {
            "/v1/chat/completions": ("messages", {"type": "image_url", "image_url": {"url": url}}),
            "/v1/messages": ("messages", {"type": "image", "source": {"type": "url", "url": url}}),
            "/v1/messages/count_tokens": (
                "messages",
                {"type": "document", "source": {"type": "url", "url": url}},
            ),
            "/v1/responses": ("input", {"type": "input_image", "image_url": url}),
        }
        before = len(server.engine.submitted)
        for path, (field, part) in parts.items():
            body = filled(path, field, [{"role": "user", "content": [part]}])
            message = is_error(server.http.post(path, content=body), path, 400)
            assert "127.0.0.1" not in message
        assert len(server.engine.submitted) == before
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()


# ---- what the log says of all that


def test_k24_nothing_of_a_bad_body_is_in_the_log(server, caplog):
    with caplog.at_level(logging.INFO):
        for path, fields in ROUTES.items():
            server.http.post(path, json={**fields, "model": "marker-of-a-body"})
            server.http.post(path, content=b'{"marker-of-a-body": \xff')
            server.http.post(path, json={**fields, "temperature": "marker-of-a-body"})
            server.http.post(path, json={"marker-of-a-body": [[[]]] * 200_000})
    assert "marker-of-a-body" not in "".join(record.getMessage() for record in caplog.records)
    assert caplog.records
