"""What the admin API changes: models, pulls, the cache, settings; and what only the page asks."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.engine.lifecycle import EngineHealth
from omlx.server.context import Places
from omlx.server.pulls import PullFailed, Pulls, PullState
from omlx.settings.schema import Log, Server
from tests.fakes.blocks import Clock, Shelf, make_chain
from tests.fakes.desk import FakeDesk
from tests.fakes.engine import ScriptedEngine, say
from tests.fakes.fs import MemoryFileSystem
from tests.fakes.server import Plan, Running, entry, running

HOSTILE = "<img src=x onerror=alert(1)>"
MARKER = "marker-of-a-prompt"


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> FakeDesk:
    return FakeDesk(tmp_path_factory.mktemp("home"), {"OMLX_SERVER_KEEPALIVE": "5s"})


@pytest.fixture(scope="module")
def server(desk, tmp_path_factory) -> Iterator[Running]:
    cache_dir = tmp_path_factory.mktemp("cache")
    chain = make_chain(3)
    memory = MemoryFileSystem(Clock())
    shelf = Shelf(memory, Clock())
    for block in chain:
        shelf.put(block)
    plan = Plan(
        entries=[entry("fake", window=4096), entry(HOSTILE)],
        engines=[ScriptedEngine(script=say("ok")), ScriptedEngine(HOSTILE)],
        desk=desk,
        places=Places(cache_dir, tmp_path_factory.mktemp("models")),
    )
    with running(plan) as server:
        yield server


def post(server, path, body=None):
    return server.http.post(f"/admin/api/{path}", json=body)


# ---- models


def test_a_model_is_unloaded_and_loaded_without_waiting(server):
    assert post(server, "models/unload", {"model": "fake"}).json() == {
        "id": "fake", "state": "unloaded", "is_pinned": False,
    }  # fmt: skip
    assert post(server, "models/load", {"model": "fake"}).json()["state"] == "ready"


def test_a_pin_is_set_shown_and_taken_off(server):
    def is_pinned():
        models = server.http.get("/admin/api/models").json()["models"]
        return {one["id"]: one["is_pinned"] for one in models}["fake"]

    assert post(server, "models/pin", {"model": "fake"}).json()["is_pinned"] is True
    assert is_pinned() is True
    assert post(server, "models/unpin", {"model": "fake"}).json()["is_pinned"] is False
    assert is_pinned() is False


def test_a_busy_model_is_not_unloaded(server):
    pool = server.service.context.pool
    pool.healths["fake"] = EngineHealth(num_live=2)
    try:
        answer = post(server, "models/unload", {"model": "fake"})
    finally:
        pool.healths.clear()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_in_use")
    assert "2 requests" in answer.json()["error"]["message"]


@pytest.mark.parametrize("verb", ["load", "unload", "pin", "unpin"])
@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "nothing"}, 404), ({}, 400), ({"model": 1}, 400), ([], 400),
     ({"model": "fake", "more": 1}, 400)],
)  # fmt: skip
def test_what_is_no_model_is_refused(server, verb, body, status):
    assert post(server, f"models/{verb}", body).status_code == status


# ---- pulls


class Fetching:
    """A fetch that a test moves along."""

    def __init__(self):
        self.specs = []
        self.steps = asyncio.Queue()

    async def __call__(self, spec, report):
        self.specs.append(spec)
        while True:
            match await self.steps.get():
                case (done, total, stage):
                    report(done, total, stage)
                case str(folder):
                    return folder
                case Exception() as error:
                    raise error


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def one_pull(adopt=lambda folder: "name"):
    fetching = Fetching()
    return fetching, Pulls(fetching, adopt, lambda: 5.0)


def test_a_pull_from_its_first_byte_to_its_name():
    async def course():
        fetching, pulls = one_pull()
        pulls.begin("org/name", {"model": "org/name"})
        await settle()
        await fetching.steps.put((5, 10, "download"))
        await settle()
        (shown,) = pulls.shown()
        assert (shown["state"], shown["stage"]) == ("running", "download")
        assert (shown["done_bytes"], shown["total_bytes"]) == (5, 10)
        assert pulls.running("org/name") is not None
        await fetching.steps.put("/models/org/name")
        await settle()
        (shown,) = pulls.shown()
        assert (shown["state"], shown["served_as"]) == ("done", "name")
        assert pulls.running("org/name") is None
        assert fetching.specs == [{"model": "org/name"}]

    asyncio.run(course())


def test_a_pull_that_fails_or_is_cancelled_says_so():
    async def course():
        fetching, pulls = one_pull()
        first = pulls.begin("a", {})
        await settle()
        await fetching.steps.put(PullFailed("no such model (try another)"))
        await settle()
        assert (first.state, first.error) == (PullState.FAILED, "no such model (try another)")
        second = pulls.begin("b", {})
        await settle()
        assert await pulls.cancel(second.number) is second
        assert second.state is PullState.CANCELLED
        assert await pulls.cancel(99) is None
        third = pulls.begin("c", {})
        await settle()
        await pulls.close()
        assert third.state is PullState.CANCELLED
        assert third.task is not None and third.task.done()

    asyncio.run(course())


def test_pulls_are_bounded_and_the_running_ones_are_kept():
    async def fetch(spec, report):
        if spec["model"] == "stays":
            await asyncio.Event().wait()
        return "/somewhere"

    async def course():
        pulls = Pulls(fetch, lambda folder: None, lambda: 0.0)
        stays = pulls.begin("stays", {"model": "stays"})
        for number in range(30):
            assert not pulls.is_full
            pulls.begin(str(number), {"model": str(number)})
            assert pulls.is_full
            await settle()
        shown = pulls.shown()
        assert len(shown) == 21
        assert [one["model"] for one in shown if one["state"] == "running"] == ["stays"]
        await pulls.close()
        assert stays.state is PullState.CANCELLED

    asyncio.run(course())


@pytest.mark.parametrize("model", ["", "no-slash/", "../x", "a/b/c", "x" * 300, HOSTILE])
def test_what_names_no_model_of_a_hub_is_refused_by_field(server, model):
    answer = post(server, "pulls", {"model": model})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "$.model")
    assert server.http.get("/admin/api/pulls").json()["pulls"] == []


@pytest.mark.parametrize("number", ["1", "x", "99999999999999"])
def test_a_pull_that_is_not_there_can_not_be_cancelled(server, number):
    assert server.http.delete(f"/admin/api/pulls/{number}").status_code == 404


# ---- the cache


@pytest.fixture
def stored(server) -> Path:
    """A chain of three blocks of one model on disk."""
    directory = server.service.context.places.cache_dir
    from omlx.storage.fs import RealFileSystem

    shelf = Shelf(RealFileSystem(), time.time, directory=directory)
    for block in make_chain(3):
        shelf.put(block)
    return directory


def blocks(directory):
    return sorted(directory.rglob("*.safetensors"))


def test_a_preview_removes_nothing_and_the_prune_what_it_said(server, stored):
    preview = post(server, "cache/prune", {"everything": True, "is_dry_run": True}).json()
    assert preview["is_dry_run"] is True and preview["num_files"] >= 3
    assert len(blocks(stored)) == 3
    done = post(server, "cache/prune", {"everything": True}).json()
    assert done == {**preview, "is_dry_run": False}
    assert blocks(stored) == []


def test_a_size_leaves_the_newest(server, stored):
    size = blocks(stored)[0].stat().st_size
    done = post(server, "cache/prune", {"max_size": f"{size * 2}"}).json()
    assert done["num_failed"] == 0
    assert 0 < len(blocks(stored)) < 3


@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "$"), ({"everything": True, "max_size": "1GB"}, "$.everything"),
     ({"max_size": "much"}, "$.max_size"), ({"older_than": "-1"}, "$.older_than"),
     ({"model": "nobody"}, "$.model"), ({"everything": "yes"}, "$.everything"),
     ({"all": True}, None)],
)  # fmt: skip
def test_what_is_wrong_with_a_prune_is_said_by_field(server, stored, body, field):
    answer = post(server, "cache/prune", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert len(blocks(stored)) > 0


def test_why_a_request_missed_is_the_desks_answer(server, desk):
    desk.misses["abc"] = {"id": "abc", "miss": "cold"}
    assert server.http.get("/admin/api/requests/abc/miss").json() == desk.misses["abc"]
    missing = server.http.get("/admin/api/requests/nothing/miss")
    assert missing.status_code == 404
    assert server.http.get(f"/admin/api/requests/{'x' * 500}/miss").status_code == 404


# ---- settings


def settings(server):
    return server.http.get("/admin/api/settings").json()


def change(server, path, value):
    return post(server, f"settings/{path}", {"value": value})


def test_a_setting_is_written_and_waits_for_the_next_start(server, desk):
    answer = change(server, "cache.max_size", "8GB").json()
    assert answer["needs_restart"] is True and answer["is_shadowed"] is False
    assert answer["shown"] == "8GB" and answer["origin"]["kind"] == "file"
    assert 'cache.max_size = "8GB"' in (desk.home / "config.toml").read_text()
    found = settings(server)
    assert found["settings"]["cache.max_size"]["value"] == "auto"
    assert found["pending"]["cache.max_size"]["shown"] == "8GB"
    again = server.http.delete("/admin/api/settings/cache.max_size").json()
    assert again["needs_restart"] is False
    assert "cache.max_size" not in settings(server)["pending"]


def test_a_variable_that_comes_first_is_told(server, desk):
    answer = change(server, "server.keepalive", "7s").json()
    assert answer["is_shadowed"] is True
    assert answer["origin"]["where"] == "OMLX_SERVER_KEEPALIVE"
    server.http.delete("/admin/api/settings/server.keepalive")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("server.port", "70000", "not within 0 to 65535"),
        ("cache.max_size", "much", "8GB"),
        ("cache.load", "sometimes", "one of auto, always, never"),
        ("cache.enabled", "perhaps", "true or false"),
        ("server.port", HOSTILE, "whole number"),
    ],
)
def test_a_wrong_value_is_refused_by_its_field(server, desk, path, value, says):
    before = (desk.home / "config.toml").read_text()
    answer = change(server, path, value)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, path)
    assert says in answer.json()["error"]["message"]
    assert not answer.json()["error"]["message"].startswith(path)
    assert (desk.home / "config.toml").read_text() == before


def test_an_unknown_setting_is_named_with_what_was_meant(server):
    answer = change(server, "cache.max_sise", "1GB")
    assert answer.status_code == 404
    assert "cache.max_size" in answer.json()["error"]["message"]


def test_secrets_are_neither_shown_nor_written(tmp_path):
    desk = FakeDesk(tmp_path, {"OMLX_SERVER_API_KEY": "sk-secret"})
    (tmp_path / "config.toml").write_text('server.metrics_key = "sk-other"\n')
    with running(Plan(server=Server(port=0, api_key="sk-secret"), desk=desk)) as server:
        server.http.headers["x-api-key"] = "sk-secret"
        text = server.http.get("/admin/api/settings").text
        assert "sk-secret" not in text and "sk-other" not in text
        found = settings(server)
        assert found["settings"]["server.api_key"]["value"] == "********"
        assert found["schema"]["server.api_key"]["shown"] == "********"
        assert found["schema"]["server.api_key"]["is_secret"] is True
        assert found["pending"]["server.metrics_key"]["shown"] == "********"
        answer = change(server, "server.api_key", "sk-new")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "server.api_key")


def test_files_that_are_wrong_are_told_and_hide_nothing(tmp_path):
    (tmp_path / "config.toml").write_text("[server]\nport = 'x'\n")
    with running(Plan(desk=FakeDesk(tmp_path))) as server:
        found = settings(server)
        assert len(found["problems"]) == 1 and "port" in found["problems"][0]
        assert found["settings"]["server.port"]["value"] == 0


# ---- what only the page asks


def test_what_leads_comes_from_the_status(server):
    figures = server.http.get("/admin/api/lead").json()["figures"]
    assert figures["ttft_s"]["verdict"] == "good"
    assert "last_day" in figures["ttft_s"]["of"]


def test_the_last_turns_are_kept_without_their_text(server):
    for number in range(3):
        server.chat(f"{MARKER} {number}")
    answer = server.http.get("/admin/api/turns")
    turns = answer.json()["turns"]
    assert len(turns) >= 3
    last = turns[-1]
    assert set(last) == {"time", "model", "client", "ttft_s", "prompt_tokens", "cached_tokens"}
    assert last["model"] == "fake" and last["ttft_s"] > 0 and last["prompt_tokens"] > 0
    assert [one["time"] for one in turns] == sorted(one["time"] for one in turns)
    assert MARKER not in answer.text


def test_clients_and_recipes_are_for_a_model(server, desk):
    found = server.http.get("/admin/api/clients").json()
    assert {"name": "fake", "window": 4096} in found["models"]
    assert found["clients"][0]["window"] is None
    found = server.http.get("/admin/api/clients?model=fake").json()
    assert found["clients"][0]["window"] == 4096
    recipe = server.http.get("/admin/api/clients/aider?model=fake").json()
    assert recipe["text"] == f"aider --openai-api-base {server.url}/v1"
    assert (desk.wanted[-1].model, desk.wanted[-1].needs_key) == ("fake", False)


@pytest.mark.parametrize(
    ("path", "status"),
    [("aider", 400), ("aider?model=nobody", 404), ("nobody?model=fake", 400),
     (f"aider?model={HOSTILE}", 409)],
)  # fmt: skip
def test_a_recipe_that_can_not_be_made_says_why(server, path, status):
    answer = server.http.get(f"/admin/api/clients/{path}")
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_the_log_without_a_file_is_what_this_server_said(server, caplog):
    with caplog.at_level(logging.INFO):
        logging.getLogger("omlx.server").warning("a line with %s\nand another", HOSTILE)
    found = server.http.get("/admin/api/logs").json()
    assert found["path"] is None
    assert found["lines"][-2].endswith(f"WARNING omlx.server a line with {HOSTILE}")
    assert found["lines"][-1] == "and another"
    (last,) = server.http.get("/admin/api/logs?lines=1").json()["lines"]
    assert last == "and another"


@pytest.mark.parametrize("lines", ["0", "1001", "x", "-1", ""])
def test_a_number_of_lines_that_is_none(server, lines):
    answer = server.http.get(f"/admin/api/logs?lines={lines}&x=1")
    assert answer.status_code == (200 if lines == "" else 400)


def test_the_log_of_a_file_is_its_end_and_what_it_was_rotated_into(tmp_path):
    path = tmp_path / "serve.log"
    (tmp_path / "serve.log.1").write_text("".join(f"old {n}\n" for n in range(2000)))
    path.write_bytes(b"new\n\xff broken\n" + b"x" * 5000 + b"\n")
    with running(Plan(log=Log(file=path))) as server:
        found = server.http.get("/admin/api/logs?lines=1000").json()
        assert found["path"] == str(path)
        assert len(found["lines"]) == 1000
        assert found["lines"][-3:-1] == ["new", "\ufffd broken"]
        assert len(found["lines"][-1]) == 2000
        assert found["lines"][0] == "old 1003"


def test_a_server_without_a_desk_says_so():
    with running() as server:
        for path in ("lead", "clients", "clients/aider?model=fake", "requests/x/miss"):
            answer = server.http.get(f"/admin/api/{path}")
            assert answer.status_code in (404, 409)
        assert post(server, "pulls", {"model": "a/b"}).status_code == 404
        assert post(server, "cache/prune", {"everything": True}).status_code == 404
        assert change(server, "cache.max_size", "1GB").status_code == 404
        assert settings(server)["pending"] == {}
