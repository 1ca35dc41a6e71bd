"""A server with several API keys, over HTTP: who is who, limits, shares, what is told of keys."""

import json
import logging
import os
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from omlx.engine.request import Failed, FailureCode, FinishReason
from omlx.errors import ServerError, SettingsError
from omlx.server.salt import SALT_HEADER
from omlx.settings.keys import Limits, Scope, change_keys, new_key, read_keys, with_key
from omlx.settings.schema import Cache, Server
from tests.fakes.desk import FakeDesk
from tests.fakes.engine import PATIENCE_S, say, silent
from tests.fakes.server import Plan, running

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
GENERATING = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "fake", "prompt": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/v1/responses": {"model": "fake", "input": "hi"},
}
PROMPT_TOKENS = 18


class Keys:
    """A file of keys, and what clients send for each."""

    def __init__(self, path):
        self.path = path
        self.sent = {}

    def add(self, name, scope=Scope.INFERENCE, expires=None, **limits):
        key, self.sent[name] = new_key(
            name, now=datetime.now(UTC), scope=scope, limits=Limits(**limits), expires=expires
        )
        change_keys(self.path, with_key(key))

    def header(self, name):
        return {"x-api-key": self.sent[name]}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    kept = Keys(tmp_path_factory.mktemp("home") / "keys.toml")
    kept.add("ann")
    kept.add("bob")
    kept.add("boss", Scope.ADMIN)
    kept.add("old", expires=datetime.now(UTC) - timedelta(seconds=1))
    return kept


@pytest.fixture(scope="module")
def shared(keys, tmp_path_factory):
    journal = tmp_path_factory.mktemp("journal") / "j.sqlite3"
    desk = FakeDesk(tmp_path_factory.mktemp("desk"))
    with running(Plan(keys_path=keys.path, journal_path=journal, desk=desk)) as server:
        yield server


@pytest.fixture
def server(shared):
    shared.engine.script = say("ok")
    shared.engine.submitted.clear()
    shared.engine.aborted.clear()
    return shared


def post(server, path, headers, **changed):
    return server.http.post(path, json={**GENERATING[path], **changed}, headers=headers)


# ---- who is who


@pytest.mark.parametrize(
    "form", ["x-api-key {}", "authorization Bearer {}", "authorization bearer {}"]
)
def test_a15_both_forms_of_the_key_and_a_look_from_afar(server, keys, form):
    """A15"""
    name, _, value = form.partition(" ")
    headers = {name: value.format(keys.sent["ann"])}
    assert server.http.head("/").status_code == 200
    for path in ("/v1/models", "/v1/models/fake"):
        assert server.http.get(path).status_code == 401
        assert server.http.get(path, headers=headers).status_code == 200
    for path in GENERATING:
        assert post(server, path, {}).status_code == 401
        assert post(server, path, headers).status_code == 200
    assert server.engine.submitted[-1].tenant == "key ann"


@pytest.mark.parametrize("path", GENERATING)
def test_the_tenant_is_the_key_whatever_the_session_says(server, keys, path):
    for name in ("ann", "bob"):
        headers = {**keys.header(name), "x-session-id": "the-same"}
        assert post(server, path, headers).status_code == 200
    assert [request.tenant for request in server.engine.submitted] == ["key ann", "key bob"]


def test_answers_that_are_kept_are_for_their_key(server, keys):
    made = post(server, "/v1/responses", keys.header("ann")).json()["id"]
    path = f"/v1/responses/{made}"
    assert server.http.get(path, headers=keys.header("bob")).status_code == 404
    assert server.http.delete(path, headers=keys.header("bob")).status_code == 404
    assert server.http.get(f"{path}/input_items", headers=keys.header("bob")).status_code == 404
    follow = {"previous_response_id": made}
    assert post(server, "/v1/responses", keys.header("bob"), **follow).status_code >= 400
    assert post(server, "/v1/responses", keys.header("ann"), **follow).status_code == 200
    assert server.http.get(path, headers=keys.header("ann")).status_code == 200


ADMIN = [
    f"/admin/api/{name}"
    for name in (
        "status",
        "models",
        "cache",
        "requests",
        "settings",
        "keys",
        "lead",
        "turns",
        "clients",
        "logs",
        "pulls",
    )
]


@pytest.mark.parametrize("path", [*ADMIN, "/admin/nothing", "/admin/api/keys/ann"])
def test_x4_the_admin_surface_needs_an_admin(server, keys, path):
    """X4"""
    for headers, status in (({}, 401), (keys.header("old"), 401), (keys.header("ann"), 403)):
        for method in ("GET", "POST", "DELETE", "PUT"):
            assert server.http.request(method, path, headers=headers).status_code == status
    is_there = server.http.get(path, headers=keys.header("boss")).status_code
    assert is_there == (200 if path in ADMIN else 405 if "ann" in path else 404)


@pytest.mark.parametrize(
    "path", ["/metrics", "/nothing", "/admin%2fapi/status", "//admin/api/keys"]
)
def test_what_is_neither_open_nor_an_admins_needs_any_key(server, keys, path):
    assert server.http.get(path).status_code in (401, 403)
    assert server.http.get(path, headers=keys.header("ann")).status_code in (200, 403, 404)


def test_models_can_be_loaded_with_a_plain_key(server, keys):
    path = "/v1/models/fake/load"
    assert server.http.post(path).status_code == 401
    assert server.http.post(path, headers=keys.header("ann")).json()["state"] == "ready"


def test_health_names_models_to_those_with_a_key_only(server, keys):
    assert "models" not in server.http.get("/health").json()
    assert "models" not in server.http.get("/health", headers=keys.header("old")).json()
    assert "models" in server.http.get("/health", headers=keys.header("ann")).json()


# ---- limits


@contextmanager
def limited(tmp_path, **limits):
    keys = Keys(tmp_path / "keys.toml")
    keys.add("ann", **limits)
    keys.add("bob")
    with running(Plan(keys_path=keys.path)) as server:
        yield server, keys


@pytest.mark.parametrize("path", GENERATING)
def test_too_many_requests_are_told_so_in_each_dialect(tmp_path, path):
    with limited(tmp_path, requests_per_minute=1) as (server, keys):
        assert post(server, path, keys.header("ann")).status_code == 200
        for changed in ({}, {"stream": True}, {"model": "unknown"}):
            refused = post(server, path, keys.header("ann"), **changed)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            error = refused.json()["error"]
            assert error["type"] == "rate_limit_error"
            assert "1 requests a minute" in error["message"]
            is_anthropic = path == "/v1/messages"
            assert (error.get("code") == "rate_limit_exceeded") != is_anthropic
            assert (refused.json().get("type") == "error") == is_anthropic
        assert post(server, path, keys.header("bob")).status_code == 200
        assert len(server.engine.submitted) == 2


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("is_stream", [False, True])
def test_tokens_of_prompts_and_answers_are_charged(tmp_path, path, is_stream):
    with limited(tmp_path, tokens_per_minute=60) as (server, keys):
        server.engine.script = say("x" * 60)
        changed = {"max_tokens": 60} if path == "/v1/messages" else {}
        assert (
            post(server, path, keys.header("ann"), stream=is_stream, **changed).status_code == 200
        )
        num_prompt = len(server.engine.submitted[0].tokens)
        refused = post(server, path, keys.header("ann"))
        assert refused.status_code == 429
        assert num_prompt - 2 <= int(refused.headers["retry-after"]) <= num_prompt + 1


def test_counting_tokens_is_a_request_too(tmp_path):
    with limited(tmp_path, requests_per_minute=1) as (server, keys):
        path = "/v1/messages/count_tokens"
        ask = [server.http.post(path, json=CHAT, headers=keys.header("ann")) for _ in range(2)]
        assert [response.status_code for response in ask] == [200, 429]
        for path in ("/v1/models", "/metrics"):
            assert server.http.get(path, headers=keys.header("ann")).status_code == 200


def failing(request):
    return [[Failed(request.id, FailureCode.ENGINE, "no")]]


ENDINGS = {
    "it is answered": {},
    "it is streamed": {"stream": True},
    "the engine fails": {"script": failing},
    "the engine fails in a stream": {"script": failing, "stream": True},
    "the engine gives up": {"script": say("ok", reason=FinishReason.ABORT)},
    "the model is unknown": {"model": "unknown"},
    "a field is wrong": {"temperature": "hot"},
    "several answers": {"n": 3},
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_place_is_free_again_however_a_request_ends(tmp_path, ending):
    changed = dict(ENDINGS[ending])
    with limited(tmp_path, concurrent=1) as (server, keys):
        server.engine.script = changed.pop("script", say("ok"))
        for _ in range(3):
            response = post(server, "/v1/chat/completions", keys.header("ann"), **changed)
            assert response.status_code != 429
        server.engine.script = say("ok")
        assert post(server, "/v1/chat/completions", keys.header("ann")).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_place_is_free_again_once_the_client_has_gone(tmp_path, is_stream):
    with limited(tmp_path, concurrent=1) as (server, keys):
        server.engine.script = silent
        body = {**CHAT, "stream": is_stream}
        options = {"base_url": server.url, "verify": False, "timeout": 0.2}
        with httpx.Client(**options) as leaving, pytest.raises(httpx.ReadTimeout):
            response = leaving.send(
                leaving.build_request(
                    "POST", "/v1/chat/completions", json=body, headers=keys.header("ann")
                ),
                stream=True,
            )
            assert post(server, "/v1/chat/completions", keys.header("ann")).status_code == 429
            response.read()
        server.engine.script = say("ok")
        deadline = time.monotonic() + PATIENCE_S
        while post(server, "/v1/chat/completions", keys.header("ann")).status_code == 429:
            assert time.monotonic() < deadline
        assert server.engine.aborted


def test_a_body_on_its_way_takes_a_place(tmp_path):
    with limited(tmp_path, concurrent=1) as (server, keys):

        def slowly():
            yield b"{"
            answers.append(post(server, "/v1/chat/completions", keys.header("ann")).status_code)
            yield b"}"

        answers = []
        headers = {**keys.header("ann"), "content-type": "application/json"}
        server.stranger.post("/v1/chat/completions", content=slowly(), headers=headers)
        assert answers == [429]


# ---- shares of the cache


@pytest.mark.parametrize("isolate", ["none", "key"])
def test_p22_who_shares_what_is_cached(tmp_path, isolate):
    """P22"""
    keys = Keys(tmp_path / "keys.toml")
    for name in ("ann", "bob"):
        keys.add(name)
    plan = Plan(
        keys_path=keys.path, server=Server(port=0, api_key="own"), cache=Cache(isolate=isolate)
    )
    with running(plan) as server:

        def salt(headers):
            assert post(server, "/v1/chat/completions", headers).status_code == 200
            return server.engine.submitted[-1].salt

        plain = [
            salt(headers)
            for headers in (keys.header("ann"), keys.header("bob"), {"x-api-key": "own"})
        ]
        assert len(set(plain)) == (1 if isolate == "none" else 3)
        assert ("" in plain) == (isolate == "none")
        assert salt(keys.header("ann")) == plain[0]
        chosen = [
            salt({**keys.header(name), SALT_HEADER: own})
            for name, own in (("ann", "x"), ("ann", "y"), ("bob", "x"))
        ]
        assert len({*chosen, *plain}) == 3 + len(set(plain))
        for secret in (*keys.sent.values(), "own"):
            assert all(secret not in one for one in (*plain, *chosen))
        change_keys(keys.path, lambda old: [key for key in old if key.name != "ann"])
        keys.add("ann")
        again = salt(keys.header("ann"))
        assert (again == plain[0]) == (isolate == "none"), "a new key of an old name is another one"


def test_a_salt_of_the_clients_own_without_keys():
    with running(Plan(cache=Cache(isolate="key"))) as server:
        salts = []
        for headers in ({}, {SALT_HEADER: "x"}, {SALT_HEADER: "x"}, {SALT_HEADER: ""}):
            assert post(server, "/v1/messages", headers).status_code == 200
            salts.append(server.engine.submitted[-1].salt)
        assert salts[0] == salts[3] == "" != salts[1] == salts[2]
        refused = post(server, "/v1/messages", {SALT_HEADER: "x" * 257})
        assert refused.status_code == 400 and SALT_HEADER in refused.json()["error"]["message"]


def test_the_journal_knows_the_salt_of_a_row(tmp_path, keys):
    from omlx.storage.history import History

    path = tmp_path / "j.sqlite3"
    with running(
        Plan(keys_path=keys.path, journal_path=path, cache=Cache(isolate="key"))
    ) as server:
        post(server, "/v1/chat/completions", keys.header("ann"))
        salt = server.engine.submitted[-1].salt
    entry = History(path).last()
    assert entry is not None and entry.salt == salt != ""


# ---- the admin API


def test_keys_are_made_listed_and_removed(server, keys):
    boss = keys.header("boss")
    body = {"name": "new", "concurrent": 2, "expires_in_s": 3600}
    made = server.http.post("/admin/api/keys", json=body, headers=boss)
    assert made.status_code == 201
    sent = made.json()["key"]
    assert made.headers["cache-control"] == "no-store"
    listed = server.http.get("/admin/api/keys", headers=boss)
    assert [key["name"] for key in listed.json()["keys"]] == [*keys.sent, "new"]
    assert "key" not in listed.json()["keys"][-1]
    assert {**listed.json()["keys"][-1], "key": sent} == made.json()
    assert post(server, "/v1/chat/completions", {"x-api-key": sent}).status_code == 200
    assert server.http.post("/admin/api/keys", json=body, headers=boss).status_code == 409
    gone = server.http.delete("/admin/api/keys/new", headers=boss)
    assert gone.json() == {"name": "new", "deleted": True}
    assert server.http.delete("/admin/api/keys/new", headers=boss).status_code == 404
    assert post(server, "/v1/chat/completions", {"x-api-key": sent}).status_code == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"name": "a b"}, "$.name"),
        ({"name": "../x"}, "$.name"),
        ({"name": "x", "scope": "owner"}, "$.scope"),
        ({"name": "x", "concurrent": 0}, "$.concurrent"),
        ({"name": "x", "requests_per_minute": 10**12}, "$.requests_per_minute"),
        ({"name": "x", "expires_in_s": -1}, "$.expires_in_s"),
        ({"name": "x", "expires_in_s": 1e300}, "$.expires_in_s"),
        ({"name": "x", "more": 1}, None),
    ],
)
def test_a_key_that_can_not_be_made(server, keys, body, param):
    before = read_keys(keys.path)
    refused = server.http.post("/admin/api/keys", json=body, headers=keys.header("boss"))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert read_keys(keys.path) == before


def test_a_server_without_a_file_has_no_keys(shared_server):
    assert shared_server.http.get("/admin/api/keys").status_code == 404
    assert shared_server.http.post("/admin/api/keys", json={"name": "x"}).status_code == 404


def test_the_first_key_locks_a_server_at_once(tmp_path):
    with running(Plan(keys_path=tmp_path / "keys.toml")) as server:
        assert server.chat().status_code == 200
        made = server.http.post("/admin/api/keys", json={"name": "boss", "scope": "admin"})
        assert server.chat().status_code == 401
        boss = {"x-api-key": made.json()["key"]}
        assert server.http.delete("/admin/api/keys/boss", headers=boss).status_code == 200
        assert server.chat().status_code == 401, "it stays locked"


# ---- starts


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_x3_an_open_address_needs_a_key_of_either_kind(tmp_path, host):
    """X3"""
    keys = Keys(tmp_path / "keys.toml")
    plan = Plan(server=Server(host=host, port=0), keys_path=keys.path)
    with pytest.raises(ServerError, match="needs an API key"), running(plan):
        pass
    keys.add("ann")
    with running(plan) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
        assert httpx.get(f"{url}/v1/models", verify=False).status_code == 401
        found = httpx.get(f"{url}/v1/models", headers=keys.header("ann"), verify=False)
        assert found.status_code == 200


def test_a_server_does_not_start_on_keys_that_others_can_read(tmp_path):
    keys = Keys(tmp_path / "keys.toml")
    keys.add("ann")
    keys.path.chmod(0o644)
    with pytest.raises(SettingsError, match="other users"), running(Plan(keys_path=keys.path)):
        pass


# ---- what is told of keys


def test_x4_x8_no_key_and_no_prompt_is_shown_or_logged(server, keys, caplog):
    """X4, X8: after every endpoint, with a key, with none, and with a wrong one."""
    marker, wrong = "marker-of-a-prompt", "omlx-marker-of-a-wrong-key"
    caplog.set_level(logging.INFO)
    senders = [{}, {"x-api-key": wrong}, {"authorization": f"Bearer {wrong}"}]
    senders += [keys.header(name) for name in keys.sent]
    shown = []
    fields = json.loads(json.dumps(GENERATING).replace('"hi"', f'"{marker}"'))
    for headers in senders:
        for path, body in fields.items():
            for changed in ({}, {"stream": True}, {"model": marker}, {"temperature": marker}):
                sent = {**body, **changed}
                server.http.post(path, json=sent, headers=headers)
            server.http.post(path, content=marker.encode(), headers=headers)
        for path in (*ADMIN, "/", "/health", "/metrics", "/v1/models", f"/v1/models/{wrong}"):
            found = server.http.get(path, headers=headers)
            shown.append(found.text if wrong not in path else "")
        shown.append(server.http.post("/admin/api/keys", json={}, headers=headers).text)
        shown.append(server.http.delete("/admin/api/keys/x", headers=headers).text)
    logged = caplog.text + "".join(record.getMessage() for record in caplog.records)
    assert "refused: 401" in logged and "refused: 403" in logged
    # The log, which is one of the answers, has the address that was asked for.
    shown = [text.replace(f"/v1/models/{wrong}", "") for text in shown]
    assert marker not in logged and marker not in "".join(shown)
    digests = [key.digest.hex() for key in read_keys(keys.path)]
    for secret in (wrong, *(one[11:] for one in keys.sent.values()), *digests):
        assert secret not in logged.replace(f"/v1/models/{wrong}", "")
        assert secret not in "".join(shown)


def test_a_key_in_the_address_is_none(server, keys):
    """X4: it would be in every log on the way."""
    sent = keys.sent["ann"]
    for query in (f"key={sent}", f"api_key={sent}", f"x-api-key={sent}"):
        assert server.http.get(f"/v1/models?{query}").status_code == 401


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_x10_the_file_of_keys_is_for_its_owner(keys):
    """X10"""
    assert keys.path.stat().st_mode & 0o777 == 0o600
