"""What a request asks for in headers: its class, and where its blocks may be stored."""

import pytest

from omlx.cache.policy import StorePolicy
from omlx.engine.request import RequestClass
from omlx.server.errors import ApiError
from omlx.server.handling import Handling, handling
from omlx.server.prompt import head_of
from omlx.settings.schema import Cache
from omlx.storage.entry import Part, PartKind, Span
from tests.fakes.server import Plan, Running, running

ALL, MEMORY, OFF = StorePolicy.ALL, StorePolicy.MEMORY, StorePolicy.OFF
BODY = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("headers", "setting", "policy"),
    [
        ({}, "all", ALL),
        ({}, "memory", MEMORY),
        ({"x-omlx-cache-store": " OFF "}, "all", OFF),
        ({"x-omlx-cache-store": "all"}, "off", ALL),
        ({"x-omlx-cache-store": ""}, "off", OFF),
        ({"x-omlx-class": "batch"}, "all", MEMORY),
        ({"x-omlx-class": "batch"}, "memory", MEMORY),
        ({"x-omlx-class": "batch"}, "off", OFF),
        ({"x-omlx-class": "batch", "x-omlx-cache-store": "all"}, "memory", ALL),
        ({"x-omlx-class": "interactive"}, "all", ALL),
    ],
)
def test_the_request_comes_first_then_its_class_then_the_setting(
    headers: dict[str, str], setting: str, policy: StorePolicy
) -> None:
    wanted = handling(headers)
    assert wanted.policy(setting, wanted.class_of(None, "normal")) is policy


@pytest.mark.parametrize(
    ("header", "in_body", "setting", "found"),
    [
        ({}, None, "normal", RequestClass.NORMAL),
        ({}, None, "batch", RequestClass.BATCH),
        ({}, RequestClass.INTERACTIVE, "batch", RequestClass.INTERACTIVE),
        ({"x-omlx-class": "Normal"}, RequestClass.INTERACTIVE, "batch", RequestClass.NORMAL),
    ],
)
def test_the_class_is_that_of_the_header_then_the_body_then_the_setting(
    header: dict[str, str], in_body: RequestClass | None, setting: str, found: RequestClass
) -> None:
    assert handling(header).class_of(in_body, setting) is found
    assert handling({}) == Handling(None, None)


@pytest.mark.parametrize(
    ("tier", "found"),
    [
        ("priority", RequestClass.INTERACTIVE),
        ("flex", RequestClass.BATCH),
        ("auto", RequestClass.NORMAL),
        ("default", RequestClass.NORMAL),
        ("nonsense", RequestClass.NORMAL),
        (None, RequestClass.NORMAL),
    ],
)
def test_a_service_tier_is_a_class(server: Running, tier: str | None, found: RequestClass) -> None:
    path = "/v1/chat/completions"
    assert server.http.post(path, json={**BODY, "service_tier": tier}).status_code == 200
    assert server.engine.submitted[-1].request_class is found


def test_sessions_are_tenants_and_without_one_addresses(server: Running) -> None:
    headers = {"x-claude-code-session-id": "abc"}
    assert server.http.post("/v1/messages", json=BODY, headers=headers).status_code == 200
    assert server.http.post("/v1/messages", json=BODY).status_code == 200
    tenants = [request.tenant for request in server.engine.submitted]
    assert tenants == ["session abc", "address 127.0.0.1"]


@pytest.mark.parametrize("name", ["X-Omlx-Cache-Store", "X-Omlx-Class"])
def test_a_word_that_is_none_of_them_is_named(name: str) -> None:
    with pytest.raises(ApiError) as raised:
        handling({name.lower(): "disk" + "x" * 500})
    error = raised.value
    assert (error.status, error.param) == (400, name)
    assert name in error.message and len(error.message) < 200
    assert ("interactive" if "Class" in name else "memory") in error.message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_headers_reach_the_engine(server: Running, path: str) -> None:
    headers = {"X-Omlx-Class": "batch"}
    assert server.http.post(path, json=BODY, headers=headers).status_code == 200
    headers = {"x-omlx-cache-store": "off"}
    assert server.http.post(path, json=BODY, headers=headers).status_code == 200
    assert server.http.post(path, json=BODY).status_code == 200
    found = [(request.store, request.request_class) for request in server.engine.submitted]
    assert found == [
        (MEMORY, RequestClass.BATCH),
        (OFF, RequestClass.NORMAL),
        (ALL, RequestClass.NORMAL),
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_wrong_word_is_refused_before_any_work(server: Running, path: str) -> None:
    response = server.http.post(path, json=BODY, headers={"X-Omlx-Cache-Store": "disk"})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert "all, memory, off" in error["message"] and "X-Omlx-Cache-Store" in error["message"]
    assert server.engine.submitted == []


def test_the_setting_of_the_model_holds_for_requests_that_say_nothing() -> None:
    with running(Plan(cache=Cache(store="memory"))) as server:
        server.chat()
        server.http.post("/v1/messages", json=BODY, headers={"x-omlx-cache-store": "all"})
        assert [request.store for request in server.engine.submitted] == [MEMORY, ALL]


# ---- the head


def span(kind: PartKind, start: int, end: int) -> Span:
    return Span(Part(kind, 0), start, end)


@pytest.mark.parametrize(
    ("kinds", "head"),
    [
        ([], 0),
        ([PartKind.MESSAGE], 0),
        ([PartKind.SYSTEM], 9),
        ([PartKind.SYSTEM, PartKind.TOOL, PartKind.MESSAGE, PartKind.MESSAGE], 19),
        ([PartKind.SYSTEM, PartKind.MESSAGE, PartKind.TOOL], 9),
        ([PartKind.MESSAGE, PartKind.TOOL], 0),
    ],
)
def test_the_head_ends_before_the_first_message(kinds: list[PartKind], head: int) -> None:
    spans = [span(kind, 10 * i + 1, 10 * i + 9) for i, kind in enumerate(kinds)]
    assert head_of(spans) == head


def test_the_head_reaches_the_engine(server: Running) -> None:
    system = {"role": "system", "content": "Be brief."}
    for text in ("one", "another"):
        server.http.post(
            "/v1/chat/completions",
            json={"model": "fake", "messages": [system, {"role": "user", "content": text}]},
        )
    server.chat()
    first, second, plain = server.engine.submitted
    assert first.head == second.head > 0
    assert first.tokens[: first.head] == second.tokens[: second.head]
    assert bytes(first.tokens[: first.head]).endswith(b"Be brief.")
    assert plain.head == 0
