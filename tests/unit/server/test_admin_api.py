"""The endpoints below /admin/api: their shapes, and that no text of a request is in any of them."""

import json
import logging
from dataclasses import replace

import pytest

from omlx.engine.request import Admitted, Finished, FinishReason, Prefilled, Started, Token
from omlx.settings.layers import Origin, OriginKind
from omlx.settings.leaf import leaves
from omlx.settings.schema import Journal, Server
from tests.fakes.engine import ScriptedEngine, say, silent, stats
from tests.fakes.server import Plan, entry, running

MARKER = "marker-of-a-prompt"
KEY = "sk-of-the-server"
GETS = [
    "/", "/health", "/metrics", "/v1/models", "/v1/models/fake", "/admin/api/status",
    "/admin/api/models", "/admin/api/cache", "/admin/api/requests", "/admin/api/settings",
]  # fmt: skip
POSTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": MARKER}]},
    "/v1/messages": {"max_tokens": 50, "messages": [{"role": "user", "content": MARKER}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": MARKER}]},
    "/v1/completions": {"prompt": MARKER},
    "/v1/responses": {"input": MARKER, "instructions": MARKER},
}


class Fragile(ScriptedEngine):
    """Breaks where it has no script."""

    def submit(self, request):
        if self.script is None:
            raise ZeroDivisionError
        super().submit(request)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    journal = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    plan = Plan(
        server=Server(port=0, api_key=KEY),
        entries=[entry(), entry("broken")],
        engines=[Fragile(), ScriptedEngine("broken")],
        aliases={"short": "fake"},
        refused={"huge": "it is too large"},
        journal=Journal(text=True),
        journal_path=journal,
    )
    with running(plan) as server:
        server.http.headers["x-api-key"] = KEY
        yield server


def keys(value):
    return {key: type(one).__name__ for key, one in value.items()}


def test_models(own):
    answer = own.http.get("/admin/api/models").json()
    assert answer["refused"] == {"huge": "it is too large"}
    fake, _ = answer["models"]
    assert fake["names"] == ["fake", "short"]
    assert (fake["id"], fake["state"], fake["path"]) == ("fake", "ready", "/models/fake")
    assert keys(fake) == {
        "id": "str", "names": "list", "model_type": "str", "path": "str", "source": "str",
        "revision": "NoneType", "quantization": "NoneType", "weight_bytes": "int", "state": "str",
        "error": "NoneType", "window": "int", "pid": "NoneType", "is_stalled": "bool",
        "restarts": "int", "requests": "int", "load_s": "float", "warm_up_s": "float",
        "kernels": "list", "is_pinned": "bool",
    } | {"window": type(fake["window"]).__name__}  # fmt: skip


def test_cache(own):
    answer = own.http.get("/admin/api/cache").json()
    assert answer["is_on"] is True
    assert [one["id"] for one in answer["models"]] == ["fake", "broken"]
    assert keys(answer["models"][0]) == {
        "id": "str", "cache_note": "str", "memory": "dict", "disk": "dict", "snapshots": "dict",
        "writes": "dict", "counters": "dict",
    }  # fmt: skip


def test_requests_that_run(own):
    """From the queue to the last token; without any text."""
    own.engine.script = silent
    body = {"model": "fake", "stream": True, **POSTS["/v1/chat/completions"]}
    headers = {"x-session-id": "secret-session", "user-agent": "tester/1.0"}
    num_before = len(own.engine.submitted)

    def shown():
        (one,) = own.http.get("/admin/api/requests").json()["requests"]
        return one

    with own.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        own.engine.wait_for(lambda engine: len(engine.submitted) > num_before)
        request = own.engine.submitted[-1]
        first = shown()
        assert keys(first) == {
            "id": "str", "model": "str", "state": "str", "dialect": "str", "client": "str",
            "tenant": "str", "age_s": "float", "prompt_tokens": "int", "cached_tokens": "int",
            "prefilled_tokens": "int", "to_prefill_tokens": "NoneType", "generated_tokens": "int",
            "ttft_s": "NoneType", "tokens_per_s": "NoneType",
        }  # fmt: skip
        assert (first["id"], first["model"], first["client"]) == (request.id, "fake", "tester")
        assert first["state"] == "queued"
        assert first["prompt_tokens"] == len(request.tokens)
        assert "secret-session" not in json.dumps(first)
        own.engine.emit(Admitted(request.id, 3, 2), Prefilled(request.id, 4, 9))
        lines = stream.iter_lines()
        assert wait_for(lambda: shown()["state"] == "prefill")
        assert wait_for(lambda: shown()["prefilled_tokens"] == 4)
        second = shown()
        assert (second["cached_tokens"], second["to_prefill_tokens"]) == (5, 9)
        assert 4 / second["age_s"] <= second["tokens_per_s"]
        assert second["ttft_s"] is None
        own.engine.emit(Started(request.id, stats(request)), Token(request.id, ord("a")))
        assert wait_for(lambda: shown()["state"] == "decode")
        third = shown()
        assert third["age_s"] >= third["ttft_s"] > 0
        assert third["tokens_per_s"] is None  # the first token tells nothing of speed
        own.engine.emit(Token(request.id, ord("b")), Token(request.id, ord("c")))
        assert wait_for(lambda: shown()["generated_tokens"] == 3)
        fourth = shown()
        assert fourth["tokens_per_s"] >= 2 / (fourth["age_s"] - fourth["ttft_s"]) * 0.99
        assert shown()["tenant"] == first["tenant"]
        own.engine.emit(Finished(request.id, FinishReason.STOP, stats(request)))
        assert "data: [DONE]" in list(lines)
    assert own.http.get("/admin/api/requests").json()["requests"] == []
    recent = own.http.get("/admin/api/requests").json()["recent"]
    assert wait_for(lambda: recent or own.http.get("/admin/api/requests").json()["recent"])


def test_the_last_day_in_the_status(own):
    own.engine.script = say("hi")
    before = own.http.get("/admin/api/status").json()["last_day"]["clients"]
    body = {"model": "fake", **POSTS["/v1/chat/completions"]}
    own.http.post("/v1/chat/completions", json=body, headers={"user-agent": "day-tester/1.0"})
    status = own.http.get("/admin/api/status").json()
    day, machine = status["last_day"], status["machine_memory"]
    assert [one["client"] for one in before].count("day-tester") == 0
    (ours,) = [one for one in day["clients"] if one["client"] == "day-tester"]
    assert ours["turns"] == 1 and ours["prompt_tokens"] >= ours["cached_tokens"]
    assert ours["uncached_mean"] == ours["prompt_tokens"] - ours["cached_tokens"]
    assert (day["written_bytes"], day["evicted_bytes"]) == (0, 0)
    assert day["covered_s"] > 0
    assert machine["total_bytes"] > 0
    assert set(status["ttft_s"]) == {"p50", "p95", "parts"}


def wait_for(condition):
    return any(condition() for _ in range(500))


def test_settings_with_their_origin(own):
    context = own.service.context
    own.service.context = replace(
        context, origins={"server.api_key": Origin(OriginKind.ENV, "OMLX_SERVER_API_KEY")}
    )
    try:
        response = own.http.get("/admin/api/settings")
    finally:
        own.service.context = context
    shown = response.json()["settings"]
    assert list(shown) == list(leaves())
    assert shown["server.api_key"]["value"] == "********"
    assert shown["server.api_key"]["origin"]["where"] == "OMLX_SERVER_API_KEY"
    assert shown["server.port"] == {"value": 0, "origin": {"kind": "default", "where": "default"}}
    assert shown["models.alias"]["value"] == {"short": "fake"}
    assert KEY not in response.text


@pytest.mark.parametrize("path", [path for path in GETS if path.startswith("/admin")])
def test_admin_endpoints_need_the_key_and_only_read(own, path):
    """X4"""
    assert own.stranger.get(path).status_code == 401
    assert own.stranger.get(path, headers={"x-api-key": "wrong"}).status_code == 401
    assert own.http.post(path, json={}).status_code == 405
    assert own.http.head(path).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
def test_x8_no_text_of_a_request_is_shown_or_logged(own, caplog, is_stream):
    """X8: with answers, refusals, an engine that fails, and requests that still run."""
    answer = "marker-of-an-answer"
    with caplog.at_level(logging.INFO):
        for script in (say(answer), say(answer, reason=FinishReason.ABORT), None):
            own.engine.script = script
            for path, fields in POSTS.items():
                extra = {} if path.endswith("count_tokens") else {"stream": is_stream}
                own.http.post(path, json={"model": "fake", **fields, **extra})
                own.http.post(path, json={"model": MARKER, **fields})
                own.http.post(path, json={"model": "fake", **fields, "temperature": MARKER})
                own.http.post(path, content=MARKER.encode())
                own.stranger.post(path, json=fields, headers={"x-api-key": f"sk-{MARKER}"})
        for path in GETS:
            own.http.get(path, headers={"x-note": MARKER})
    own.engine.script = silent
    body = {"model": "fake", "stream": True, **POSTS["/v1/chat/completions"]}
    with own.http.stream("POST", "/v1/chat/completions", json=body):
        shown = "".join(own.http.get(path).text for path in GETS)
        shown += "".join(own.stranger.get(path).text for path in GETS)
    logged = caplog.text + "".join(record.getMessage() for record in caplog.records)
    for text in (MARKER, answer, KEY):
        assert text not in shown
        assert text not in logged
    assert "prompt tokens" in logged
    assert "Traceback" in logged
