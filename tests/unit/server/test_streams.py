"""Streams over time: first bytes, keep-alive, errors after the start, clients that leave."""

import json
import socket
import threading

import pytest

from omlx.engine.request import Admitted, Failed, FailureCode, Finished, FinishReason, Token
from omlx.server.app import build_app, forget_app
from omlx.server.keyring import KeyRing
from omlx.settings.schema import Server
from tests.fakes.engine import PATIENCE_S, say, silent, stats
from tests.fakes.server import Plan, running
from tests.fakes.text import FakeText
from tests.live import wait_until
from tests.unit.server import strict

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
END_OF_BODY = "\n\n\r\n0\r\n\r\n"
BOTH = pytest.mark.parametrize("dialect", list(PATHS))


def body(**fields):
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "fake", "max_tokens": 100, "messages": messages, "stream": True, **fields}


class Stream:
    """A request on a plain socket, so that the test sees what is sent when."""

    def __init__(self, server, dialect, **fields):
        payload = json.dumps(body(**fields)).encode()
        head = (
            f"POST {PATHS[dialect]} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        before = len(server.engine.submitted)
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        self.sock.sendall(head.encode() + payload)
        self.seen = b""
        server.engine.wait_for(lambda engine: len(engine.submitted) > before)
        self.request = server.engine.submitted[-1]
        self.engine = server.engine

    def until(self, mark: str) -> str:
        """Everything received so far, once `mark` is in it; chunk sizes are left in."""
        while mark.encode() not in self.seen:
            more = self.sock.recv(65536)
            assert more, f"closed before {mark!r}: {self.seen!r}"
            self.seen += more
        return self.seen.decode()

    def until_closed(self) -> str:
        while more := self.sock.recv(65536):
            self.seen += more
        return self.seen.decode()

    def emit(self, *events):
        self.engine.emit(*events)

    def admit(self, memory=0, disk=0):
        self.emit(Admitted(self.request.id, memory, disk))

    def say(self, text):
        self.emit(*(Token(self.request.id, byte) for byte in text.encode()))

    def finish(self):
        self.emit(Finished(self.request.id, FinishReason.STOP, stats(self.request)))

    def fail(self, code=FailureCode.ENGINE, message="the engine died"):
        self.emit(Failed(self.request.id, code, message))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


@pytest.fixture
def quiet(server):
    server.engine.script = silent
    return server


# ---- the first bytes


@BOTH
def test_headers_come_before_the_engine_says_anything(quiet, dialect):
    """A14"""
    with Stream(quiet, dialect) as stream:
        seen = stream.until("\r\n\r\n")
        assert "200 OK" in seen
        assert "text/event-stream" in seen


def test_the_first_event_of_chat_comes_with_the_headers(quiet):
    with Stream(quiet, "chat") as stream:
        assert '"role":"assistant"' in stream.until("\n\n")


def test_message_start_does_not_wait_for_admission(quiet):
    """A14: after a second at the latest it says that all of the prompt goes in."""
    with Stream(quiet, "messages") as stream:
        assert '"input_tokens":18,' in stream.until("message_start")
        stream.admit(memory=8, disk=2)
        stream.say("a")
        stream.finish()
        end = stream.until("message_stop")
        assert '"input_tokens":8,' in end.partition("message_delta")[2]
        assert '"cache_read_input_tokens":10' in end


def test_message_start_has_the_exact_split_if_admission_is_quick(server):
    server.engine.script = say("a", memory=8, disk=2)
    first = strict.events(server.message(stream=True).text)[0].message
    assert (first.usage.input_tokens, first.usage.cache_read_input_tokens) == (8, 10)


@BOTH
@pytest.mark.parametrize(
    ("code", "status"),
    [(FailureCode.OVERLOADED, 429), (FailureCode.BAD_REQUEST, 400), (FailureCode.ENGINE, 500)],
)
def test_a_refusal_at_once_has_a_status_of_its_own(server, dialect, code, status):
    server.engine.script = lambda request: [[Failed(request.id, code, "no")]]
    response = server.http.post(PATHS[dialect], json=body())
    is_busy = status == 429
    assert response.status_code == (529 if is_busy and "messages" in PATHS[dialect] else status)
    assert ("retry-after" in response.headers) == is_busy


# ---- silence


def test_no_timer_cuts_a_long_prefill(shared_server):
    """Sanic's own would, after a minute without a byte."""
    app = build_app(shared_server.service, KeyRing(None, None))
    forget_app(app)
    assert app.config.RESPONSE_TIMEOUT >= 3600


@pytest.fixture(scope="module")
def lively():
    """A server with short patience."""
    with running(Plan(server=Server(port=0, keepalive=0.03))) as server:
        server.engine.script = silent
        yield server


def test_chat_is_kept_alive_by_comments(lively):
    """K18, by wall clock: before the first token, between tokens, with text held back."""
    with Stream(lively, "chat", stop=["END"]) as stream:
        stream.until(": keep-alive\n\n")
        stream.admit()
        stream.say("a E")
        stream.until('"content":"a "')
        stream.seen = b""
        stream.until(": keep-alive\n\n")
        stream.finish()
        assert '"content":"E"' in stream.until("[DONE]")


def test_messages_are_kept_alive_by_pings(lively):
    """A14"""
    with Stream(lively, "messages") as stream:
        stream.until('event: ping\ndata: {"type":"ping"}\n\n')
        stream.admit()
        stream.say("a")
        stream.until("text_delta")
        stream.seen = b""
        stream.until("event: ping")
        stream.finish()
        stream.until("message_stop")


def test_keep_alive_does_not_disturb_the_sdk_types(lively):
    def script(request):
        yield [Admitted(request.id, 0, 0)]
        lively.engine.wait_for(lambda engine: release.is_set())
        yield from say("ok")(request)

    release = threading.Event()
    lively.engine.script = script
    try:
        with lively.http.stream("POST", PATHS["messages"], json=body()) as response:
            text = ""
            for part in response.iter_text():
                text += part
                if text.count("event: ping") > 1 and not release.is_set():
                    release.set()
                    lively.engine.become(lively.engine.state())
    finally:
        lively.engine.script = silent
    assert [event.type for event in strict.events(text)][-1] == "message_stop"


# ---- errors after the start


def test_an_error_in_a_chat_stream(quiet):
    with Stream(quiet, "chat") as stream:
        stream.admit()
        stream.say("half")
        stream.until("half")
        stream.fail()
        seen = stream.until("[DONE]")
        line = next(line for line in seen.splitlines() if line.startswith('data: {"error"'))
        error = json.loads(line.removeprefix("data: "))["error"]
        assert error["message"] == "the engine died"
        assert '"finish_reason":"stop"' not in seen


def test_an_error_in_a_message_stream(quiet):
    with Stream(quiet, "messages") as stream:
        stream.admit()
        stream.say("half")
        stream.until("half")
        stream.fail(FailureCode.OVERLOADED, "too much")
        seen = stream.until(END_OF_BODY)
        payload = seen.partition("event: error\ndata: ")[2].partition("\n")[0]
        error = strict.anthropic_error(payload.encode())
        assert error.error.type == "overloaded_error"
        assert "message_stop" not in seen


def test_a_bug_in_a_started_stream_ends_it_with_an_error(quiet, caplog):
    with Stream(quiet, "chat") as stream:
        stream.admit()
        stream.say("a")
        stream.until('"a"')
        stream.emit(Token(stream.request.id, 100_000))  # the fake's detokenizer can't
        assert "Internal error" in stream.until("[DONE]")
        quiet.engine.wait_for(lambda engine: stream.request.id in engine.aborted)
    assert "ValueError" in caplog.text


def test_the_connection_is_fit_for_more_after_a_stream_that_failed(quiet):
    with Stream(quiet, "chat") as stream:
        stream.admit()
        stream.until("assistant")
        stream.fail()
        stream.until(END_OF_BODY)
        stream.sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stream.until('{"status":"ready"')


# ---- clients that leave


def requests(server):
    return server.http.get("/admin/api/status").json()["requests"]


PHASES = ["queue", "prefill", "decode"]


@BOTH
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_aborts(quiet, dialect, is_stream, phase, how):
    """M9"""
    before = requests(quiet)["aborted"]
    with Stream(quiet, dialect, stream=is_stream) as stream:
        if phase != "queue":
            stream.admit()
        if phase == "decode":
            stream.say("hello")
            if is_stream:
                stream.until("hello")
        if how == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    quiet.engine.wait_for(lambda engine: stream.request.id in engine.aborted)
    now = requests(quiet)
    assert (now["active"], now["waiting"], now["aborted"]) == (0, 0, before + 1)


def test_a_client_that_stops_reading_is_given_up():
    """Its answer is not collected without end; a neighbour goes on."""
    plan = Plan(max_backlog=50)
    plan.engines[0].script = silent
    with running(plan) as server, Stream(server, "chat") as stream:
        step = [Token(stream.request.id, byte) for byte in b"x" * 40]
        while stream.request.id not in server.engine.aborted:
            stream.emit(*step)
        server.engine.script = say("ok")
        assert server.chat().status_code == 200
        stream.until_closed()
        assert "[DONE]" not in stream.seen.decode()


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_with_a_long_prompt_that_goes_is_noticed(is_stream: bool) -> None:
    """More than is read at once leaves a connection that nobody reads from."""
    message = {"role": "user", "content": "x" * 400_000}
    body = {"model": "fake", "messages": [message], "stream": is_stream}
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    plan = Plan(text=FakeText(context_window=None))
    engine = plan.engines[0]
    engine.script = silent
    with running(plan) as server:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as sock:
            sock.sendall(head % len(data) + data)
            wait_until(lambda: len(engine.submitted) == 1)
            sock.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: len(engine.aborted) == 1)
