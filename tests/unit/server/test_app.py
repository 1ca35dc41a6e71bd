"""The real application over HTTP: both dialects, their lists, the pages, the refusals."""

import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import EngineState, FinishReason
from omlx.server.context import Timing
from omlx.settings.engines import Scheduler
from omlx.settings.schema import Server
from tests.fakes.engine import PATIENCE_S, ScriptedEngine, say, silent
from tests.fakes.server import Plan, entry, running
from tests.unit.server import strict

ANTHROPIC = {"anthropic-version": "2023-06-01"}
PROMPT_TOKENS = 18


# ---- answers


def test_chat(server):
    server.engine.script = say("Paris 😀", memory=10, disk=6)
    response = server.chat()
    assert response.headers["content-type"] == "application/json"
    answer = strict.completion(response.content)
    assert answer.choices[0].message.content == "Paris 😀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == PROMPT_TOKENS
    assert answer.usage.completion_tokens == len("Paris 😀".encode())
    assert answer.usage.prompt_tokens_details.cached_tokens == 16
    assert response.headers["x-request-id"].removeprefix("req_") in answer.id


def test_message(server):
    server.engine.script = say("Paris 😀", memory=10, disk=6)
    response = server.message()
    answer = strict.message(response.content)
    assert [block.text for block in answer.content] == ["Paris 😀"]
    assert answer.stop_reason == "end_turn"
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (2, 16)
    assert usage.cache_creation_input_tokens == 0
    assert response.headers["request-id"].removeprefix("req_") in answer.id


@pytest.mark.parametrize("per_step", [1, 2, 3, 1000])
def test_a_stream_adds_up_to_the_same_answer(server, per_step):
    """K3, K9, and UTF-8 across tokens."""
    server.engine.script = say("aé😀 b" * 5, memory=3, disk=1, per_step=per_step)
    whole = strict.completion(server.chat().content)
    response = server.chat(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = strict.chunks(response.text)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1

    message = strict.message(server.message().content)
    events = strict.events(server.message(stream=True).text)
    texts = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "".join(texts) == message.content[0].text
    assert events[-2].usage.cache_read_input_tokens == message.usage.cache_read_input_tokens == 4
    assert events[-2].usage.output_tokens == message.usage.output_tokens
    assert events[0].message.usage.input_tokens == PROMPT_TOKENS - 4


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_across_tokens(server, stream):
    """K15"""
    server.engine.script = say("so beta gamma and more")
    response = server.chat(stop="beta gamma", stream=stream)
    if stream:
        chunks = strict.chunks(response.text)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        text = strict.completion(response.content).choices[0].message.content
    assert text == "so "

    response = server.message(stop_sequences=["beta gamma"], stream=stream)
    end = strict.events(response.text)[-2].delta if stream else strict.message(response.content)
    assert (end.stop_reason, end.stop_sequence) == ("stop_sequence", "beta gamma")
    server.engine.wait_for(lambda engine: len(engine.aborted) == 2)


def test_a_cut_answer_says_so(server):
    """K25"""
    server.engine.script = say("a long answer")
    answer = strict.completion(server.chat(max_completion_tokens=4).content)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content == "a lo"
    message = strict.message(server.message(max_tokens=4).content)
    assert message.stop_reason == "max_tokens"


def test_parallel_requests_keep_their_answers(server):
    """K20"""

    def script(request):
        text = bytes(request.tokens).decode().split("\n")[0].removeprefix("user:")
        yield from say(text * 20)(request)

    server.engine.script = script
    with ThreadPoolExecutor(8) as threads:
        names = [f"<{n}>" for n in range(8)]
        answers = list(threads.map(server.chat, names))
    texts = [json.loads(one.content)["choices"][0]["message"]["content"] for one in answers]
    assert texts == [name * 20 for name in names]


def test_query_strings_and_beta_headers_change_nothing(server):
    """A11, A2"""
    body = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    headers = {**ANTHROPIC, "anthropic-beta": "mid-conversation-system-2026-01-01,x"}
    response = server.http.post("/v1/messages?beta=true", json=body, headers=headers)
    assert strict.message(response.content).content[0].text == "ok"


def test_a_chunked_body_is_read(server):
    def parts():
        yield b'{"model":"fake","messages":'
        yield b'[{"role":"user","content":"hi"}]}'

    response = server.http.post("/v1/chat/completions", content=parts())
    assert strict.completion(response.content)


# ---- refusals, in the shape of each dialect


def refused(response, status, anthropic_type, openai_type="invalid_request_error"):
    """Check status and shape by the path; returns the message."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    if response.url.path.startswith("/v1/messages"):
        error = strict.anthropic_error(response.content)
        assert error.error.type == anthropic_type
        assert error.request_id == response.headers["request-id"]
        return error.error.message
    error = json.loads(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == openai_type
    return error["message"]


PATHS = ["/v1/chat/completions", "/v1/messages"]
INVALID = "invalid_request_error"


@pytest.mark.parametrize("path", PATHS)
def test_bad_bodies(server, path):
    for content in (b"", b"{", b"[]", b"null", b'"\xff"', b"[" * 100_000):
        response = server.http.post(path, content=content)
        assert refused(response, 400, INVALID)
    response = server.http.post(path, json={"model": "fake", "max_tokens": 1, "messages": [{}]})
    assert "`$.messages[0]`" in refused(response, 400, INVALID)


@pytest.mark.parametrize("path", PATHS)
def test_unknown_models(server, path):
    """A12, K23"""
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "nope", "max_tokens": 1, "messages": messages}
    assert "'nope'" in refused(server.http.post(path, json=body), 404, "not_found_error")


@pytest.mark.parametrize("path", PATHS)
def test_overflow_over_http(server, path):
    """A13: and a shorter request right after it works."""
    messages = [{"role": "user", "content": "x" * 1000}]
    body = {"model": "fake", "max_tokens": 1, "messages": messages}
    message = refused(server.http.post(path, json=body), 400, INVALID)
    assert message.startswith("prompt is too long: 1016 tokens > 1000 maximum.")
    body["messages"] = [{"role": "user", "content": "summarise"}]
    assert server.http.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", [*PATHS, "/v1/models", "/v1/nope", "/v1/messages/nope"])
def test_unknown_routes_and_methods(server, path):
    response = server.http.delete(path)
    if "nope" in path:
        assert refused(response, 404, "not_found_error")
    else:
        assert refused(response, 405, INVALID)
        assert response.headers["allow"]


def test_wrong_content_type_and_foreign_pages(server):
    """X1"""
    form = {"content-type": "text/plain"}
    response = server.http.post("/v1/messages", content=b"{}", headers=form)
    assert refused(response, 415, INVALID)
    for origin in ("https://evil.example", "null"):
        response = server.http.post("/v1/messages", json={}, headers={"origin": origin})
        assert refused(response, 403, "permission_error")
        preflight = server.http.options("/v1/messages", headers={"origin": origin})
        assert preflight.status_code == 405
        assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_foreign_host_names(server):
    """DNS rebinding."""
    for path in ("/", "/health", "/v1/models", "/nope"):
        response = server.http.get(path, headers={"host": "evil.example"})
        assert refused(response, 403, "", "permission_error")


def test_half_an_emoji_in_a_body_is_answered(server):
    body = rb'{"model":"fake","messages":[{"role":"user","content":"cut \ud83d"}]}'
    assert server.http.post("/v1/chat/completions", content=body).status_code == 200
    assert "cut �" in bytes(server.engine.submitted[-1].tokens).decode()


def raw_exchange(server, data: bytes) -> bytes:
    """Send bytes, read until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
        sock.sendall(data)
        received = b""
        while more := sock.recv(65536):
            received += more
    return received


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"413"),
        (b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", b"400"),
        (
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"zz\r\n",
            b"400",
        ),
    ],
)
def test_what_is_not_http_gets_a_json_error(server, head, status):
    answer = raw_exchange(server, head)
    assert answer.split(b"\r\n")[0].split()[1] == status
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


# ---- other routes


def test_head_and_get_of_the_root(server):
    """A15"""
    response = server.http.head("/")
    assert (response.status_code, response.content) == (200, b"")
    assert server.http.get("/").json() == {"name": "omlx"}


def test_model_lists():
    """K23, A15: each client gets the shape of its API, and the real window."""
    entries = [entry("a", window=4096), entry("org/b", window=None)]
    engines = [ScriptedEngine("a"), ScriptedEngine("org/b")]
    with running(Plan(entries=entries, engines=engines, context_window=2048)) as server:
        listed = server.http.get("/v1/models").json()
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["a", "org/b"]
        assert [model["context_window"] for model in listed["data"]] == [2048, 2048]
        assert server.http.get("/v1/models/a").json() == listed["data"][0]
        for path in ("/v1/models/org/b", "/v1/models/org%2Fb"):
            assert server.http.get(path).json() == listed["data"][1]
        listed = server.http.get("/v1/models?limit=1000", headers=ANTHROPIC).json()
        assert [model["max_input_tokens"] for model in listed["data"]] == [2048, 2048]
        assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("a", "org/b", False)
        assert server.http.get("/v1/models/a", headers=ANTHROPIC).json() == listed["data"][0]
        assert server.http.get("/v1/models/c").status_code == 404
        missing = server.http.get("/v1/models/c", headers=ANTHROPIC)
        assert strict.anthropic_error(missing.content).error.type == "not_found_error"


@pytest.mark.parametrize(
    ("states", "status", "word"),
    [
        ([EngineState.LOADING, EngineState.FAILED], 503, "loading"),
        ([EngineState.STARTING, EngineState.STARTING], 503, "loading"),
        ([EngineState.LOADING, EngineState.READY], 200, "ready"),
        ([EngineState.FAILED, EngineState.READY], 200, "ready"),
        ([EngineState.FAILED, EngineState.STOPPED], 503, "failed"),
        ([EngineState.FAILED, EngineState.UNLOADED], 200, "ready"),
        ([EngineState.UNLOADED, EngineState.LOADING], 503, "loading"),
    ],
)
def test_health(states, status, word, two_models):
    for engine, state in zip(two_models.plan.engines, states, strict=True):
        engine.become(state, "why")
    response = two_models.http.get("/health")
    assert response.status_code == status
    assert response.json() == {
        "status": word,
        "models": [
            {"id": name, "state": state.value, "last_step_age_s": None, "is_stalled": False}
            for name, state in zip("ab", states, strict=True)
        ],
    }


def test_a_stalled_engine_is_no_ready_one(two_models):
    """M10"""
    pool = two_models.service.context.pool
    for engine in two_models.plan.engines:
        engine.become(EngineState.READY)
    pool.healths["a"] = EngineHealth(last_step_age_s=99.0, is_stalled=True)
    assert two_models.http.get("/health").json()["status"] == "ready", "b can be asked"
    pool.healths["b"] = EngineHealth(last_step_age_s=50.0, is_stalled=True)
    response = two_models.http.get("/health")
    assert (response.status_code, response.json()["status"]) == (503, "stalled")
    assert [m["last_step_age_s"] for m in response.json()["models"]] == [99.0, 50.0]
    text = two_models.http.get("/metrics").text
    assert 'omlx_engine_last_step_age_seconds{model="a"} 99.0' in text
    pool.healths.clear()


def test_load_and_unload(two_models):
    pool = two_models.service.context.pool
    pool.engines["b"].become(EngineState.UNLOADED)
    response = two_models.http.post("/v1/models/b/load")
    assert (response.status_code, response.json()) == (200, {"id": "b", "state": "ready"})
    pool.healths["b"] = EngineHealth(num_live=2)
    response = two_models.http.post("/v1/models/b/unload")
    assert response.status_code == 409
    assert "'b' has 2 requests" in response.json()["error"]["message"]
    pool.healths.clear()
    response = two_models.http.post("/v1/models/b/unload", json={})
    assert (response.status_code, response.json()) == (200, {"id": "b", "state": "unloaded"})
    for path in ("c/load", "b/stop", "load", "b"):
        assert two_models.http.post(f"/v1/models/{path}").status_code == 404


def test_a_load_that_is_refused_says_why(two_models):
    pool = two_models.service.context.pool
    pool.load = lambda model_id: None
    pool.engines["b"].become(EngineState.UNLOADED)
    for reason, shown in (("it is too large", "it is too large"), ("", "unloaded again")):
        pool.refusals["b"] = reason
        response = two_models.http.post("/v1/models/b/load")
        assert response.status_code == 503
        assert shown in response.json()["error"]["message"]
    pool.refusals.clear()
    del pool.load


@pytest.fixture(scope="module")
def two_models():
    plan = Plan(
        entries=[entry("a"), entry("b")], engines=[ScriptedEngine("a"), ScriptedEngine("b")]
    )
    with running(plan) as server:
        yield server


def test_a_model_that_failed_is_a_503_with_its_reason(server):
    server.engine.become(EngineState.FAILED, "out of memory")
    response = server.message()
    assert "out of memory" in refused(response, 503, "overloaded_error")
    assert int(response.headers["retry-after"]) > 0


def test_a_request_to_a_model_that_loads_waits_for_it(server):
    server.engine.become(EngineState.LOADING)
    assert server.chat().status_code == 200


def test_metrics_and_status(server):
    server.engine.script = say("ok", memory=9)
    before = server.http.get("/admin/api/status").json()
    server.chat()
    after = server.http.get("/admin/api/status").json()
    assert after["requests"]["finished"] == before["requests"]["finished"] + 1
    assert after["requests"]["active"] == 0
    assert after["turns"]["cached_tokens"] == before["turns"]["cached_tokens"] + 9
    assert after["address"] == server.url
    assert [model["id"] for model in after["models"]] == ["fake"]
    assert server.service.status().keys() == after.keys()
    response = server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'omlx_cached_prompt_tokens_total{model="fake",tier="memory"}' in response.text


# ---- limits and keys


def test_the_queue_has_an_end():
    """429 with Retry-After, 529 for Anthropic's clients, before anything is submitted."""
    plan = Plan(scheduler=Scheduler(max_concurrent_requests=1, max_queue=1))
    plan.engines[0].script = silent
    with running(plan) as server:
        body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "a"}]}
        first = server.http.stream("POST", "/v1/chat/completions", json=body)
        second = server.http.stream("POST", "/v1/chat/completions", json=body)
        with first, second:
            server.engine.wait_for(lambda engine: len(engine.submitted) == 2)
            response = server.message()
            assert refused(response, 529, "overloaded_error")
            assert response.headers["retry-after"] == "1"
            refused(server.chat(), 429, "", "rate_limit_error")
            assert len(server.engine.submitted) == 2
        server.engine.wait_for(lambda engine: len(engine.aborted) == 2)
        server.engine.script = say("ok")
        assert server.chat().status_code == 200


SMALL = 2000


@pytest.fixture(scope="module")
def small():
    with running(Plan(server=Server(port=0, max_body=SMALL, api_key="sk-secret"))) as server:
        server.http.headers["x-api-key"] = "sk-secret"
        yield server


def test_bodies_that_are_too_large(small):
    """K24: with an honest length, and without one."""
    body = json.dumps({"x": "y" * SMALL}).encode()
    for path, content in ((PATHS[0], body), (PATHS[1], body), (PATHS[0], iter([body]))):
        response = small.http.post(path, content=content)
        assert response.status_code == 413
        assert f"{SMALL} bytes" in response.text
    assert small.engine.submitted == []


def test_a_body_that_lies_about_its_length_is_cut_off(small):
    head = (
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nx-api-key: sk-secret\r\n"
        f"Content-Length: {10**18}\r\n\r\n"
    )
    assert b" 413 " in raw_exchange(small, head.encode())


def test_a_body_that_does_not_come(patience=0.05):
    with running(Plan(timing=Timing(body_s=patience))) as server:
        head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
            sock.sendall(head)
            answer = sock.recv(65536)
        assert b" 408 " in answer
        assert b"connection: close" in answer


@pytest.mark.parametrize("path", [*PATHS, "/v1/models", "/metrics", "/admin/api/status", "/nope"])
def test_everything_else_needs_the_key(small, path):
    """X4, X8"""
    for headers in ({}, {"x-api-key": "sk-wrong"}, {"authorization": "Bearer sk-secre"}):
        method = "POST" if path in PATHS else "GET"
        response = small.stranger.request(method, path, headers=headers)
        assert response.status_code == 401
        assert "www-authenticate" in response.headers
        assert "sk-" not in response.text
    if path == "/v1/messages":
        assert strict.anthropic_error(response.content).error.type == "authentication_error"


def test_both_ways_to_send_the_key(small):
    """A15"""
    for headers in ({"x-api-key": "sk-secret"}, {"authorization": "Bearer sk-secret"}):
        assert small.stranger.get("/v1/models", headers=headers).status_code == 200


def test_health_without_the_key_says_nothing_of_models(small):
    assert small.stranger.get("/health").json() == {"status": "ready"}
    assert small.http.get("/health").json()["models"]
    assert small.stranger.head("/").status_code == 200


def test_no_key_and_no_prompt_in_answers_or_logs(small, caplog):
    """X4, X8"""
    small.engine.script = say("the answer")
    with caplog.at_level(logging.INFO):
        small.chat("marker-prompt")
        bad = {"model": "marker-model", "messages": [{"role": "marker-role"}]}
        small.stranger.post(PATHS[0], json=bad, headers={"x-api-key": "sk-marker"})
        small.http.post(PATHS[0], json=bad)
    pages = ["/health", "/metrics", "/admin/api/status", "/v1/models", "/"]
    shown = "".join(small.http.get(path).text for path in pages)
    logged = "".join(record.getMessage() for record in caplog.records)
    assert "fake stop: 29 prompt tokens" in logged
    for secret in ("sk-secret", "sk-marker", "marker-prompt", "marker-role", "the answer"):
        assert secret not in shown
        assert secret not in logged


# ---- what must not happen


class Broken(ScriptedEngine):
    def submit(self, request):
        raise ZeroDivisionError("inside")


def test_an_internal_error_tells_the_log_and_not_the_client(caplog):
    with running(Plan(engines=[Broken()])) as server:
        with caplog.at_level(logging.ERROR, logger="omlx.server"):
            messages = (
                refused(server.chat(), 500, "", "server_error"),
                refused(server.message(), 500, "api_error"),
            )
        assert all("inside" not in message for message in messages)
        assert "ZeroDivisionError: inside" in caplog.text
        assert server.service.status()["requests"]["active"] == 0


def test_an_aborted_answer_is_not_given_out_as_one(server):
    server.engine.script = say("x", reason=FinishReason.ABORT)
    refused(server.chat(), 503, "", "server_error")
