"""Prompts that are warmed: when nothing else runs, once a load, below every request of a user's."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.cache.policy import StorePolicy
from omlx.engine.lifecycle import EngineHealth
from omlx.engine.pool import engine_config
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    EngineState,
    Event,
    Failed,
    FailureCode,
    RequestClass,
)
from omlx.errors import SettingsError, StoreError
from omlx.server.heads import SharedHead
from omlx.server.openai.chat import Chat
from omlx.server.run import warm_plan
from omlx.server.warm import WarmPlan
from omlx.server.warmprompts import WarmPrompt, read_warm_prompts
from omlx.settings.build import load
from omlx.settings.schema import Cache
from tests.fakes.engine import ScriptedEngine, say
from tests.fakes.server import Plan, entry, running
from tests.live import wait_until


def prompt(text: str = "hello", model: str = "fake") -> WarmPrompt:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return WarmPrompt(f"{text}.json", model, Chat(), json.dumps(body).encode())


def held(request: EngineRequest) -> Iterable[Sequence[Event]]:
    """A script that is admitted and then waits to be aborted."""
    yield [Admitted(request.id, 0, 0)]
    while True:
        threading.Event().wait(0.01)
        yield []


def warmed(engine: ScriptedEngine) -> list[EngineRequest]:
    return [r for r in engine.submitted if r.id.startswith("warm-")]


def heads(*found: Sequence[int]) -> Callable[[str, int], list[SharedHead]]:
    shared = [SharedHead(tuple(tokens), "salt") for tokens in found]
    return lambda model_id, num_heads: shared[:num_heads]


def test_prompts_run_once_and_are_no_requests(caplog: pytest.LogCaptureFixture, tmp_path: Path):
    caplog.set_level(logging.INFO)
    warm = WarmPlan([prompt("one"), prompt("two")], 1, heads([5, 6, 7], [8]))
    with running(Plan(warm=warm, journal_path=tmp_path / "j")) as server:
        wait_until(lambda: caplog.text.count("is warm for fake") == 3)
        time.sleep(0.3)  # nothing more comes
        first, second, head = warmed(server.engine)
        assert bytes(first.tokens) != bytes(second.tokens)
        assert head.tokens == (5, 6, 7) and head.head == 3 and head.store is StorePolicy.MEMORY
        assert (first.salt, head.salt) == ("", "salt")
        for request in (first, second, head):
            assert request.max_tokens == 1
            assert request.request_class is RequestClass.BATCH
            assert request.sampling.temperature == 0
        assert first.store is StorePolicy.ALL, "so that the next start can load it"
        status = server.http.get("/admin/api/status").json()
        assert status["requests"]["finished"] == status["turns"]["count"] == 0
        assert status["recent"] == []
        metrics = server.http.get("/metrics").text
        assert "omlx_requests_total{" not in metrics
    assert not (tmp_path / "j").exists()


def test_nothing_to_warm_is_nothing_done():
    with running(Plan()) as server:
        assert server.chat().status_code == 200
        assert warmed(server.engine) == []


def test_a_users_request_ends_what_runs_and_it_goes_on_later():
    is_held, ok = threading.Event(), say("ok")

    def script(request: EngineRequest) -> Iterable[Sequence[Event]]:
        if request.id == "warm-1":
            return held(request)
        assert request.id.startswith("warm-") or is_held.wait(10)
        return ok(request)

    engine = ScriptedEngine(script=script)
    with running(Plan(engines=[engine], warm=WarmPlan([prompt()]))) as server:
        wait_until(lambda: len(warmed(engine)) == 1)
        own = warmed(engine)[0].id
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(server.chat().status_code))
        asking.start()
        wait_until(lambda: own in engine.aborted)
        time.sleep(0.3)
        assert len(warmed(engine)) == 1, "it waits for the user's request"
        is_held.set()
        asking.join()
        wait_until(lambda: len(warmed(engine)) == 2)
        assert answers == [200]
        assert warmed(engine)[1].tokens == warmed(engine)[0].tokens


def test_a_model_that_is_loaded_later_is_warmed_after_its_first_request():
    is_held = threading.Event()
    ok = say("ok")

    def script(request: EngineRequest) -> Iterable[Sequence[Event]]:
        assert request.id.startswith("warm-") or is_held.wait(10)
        return ok(request)

    engine = ScriptedEngine(script=script)
    start, engine.start = engine.start, lambda listener: (
        start(listener), engine.become(EngineState.UNLOADED)
    )[0]  # fmt: skip
    with running(Plan(engines=[engine], warm=WarmPlan([prompt()]))) as server:
        time.sleep(0.3)
        assert engine.submitted == [], "nothing is loaded for it"
        asking = threading.Thread(target=server.chat)
        asking.start()
        wait_until(lambda: len(engine.submitted) == 1)
        engine.become(EngineState.READY)
        time.sleep(0.3)
        assert warmed(engine) == []
        is_held.set()
        asking.join()
        wait_until(lambda: len(warmed(engine)) == 1)


def test_each_load_is_warmed_and_each_model_gets_its_own():
    first, second = ScriptedEngine("a"), ScriptedEngine("b")
    plan = Plan(engines=[first, second], entries=[entry("a"), entry("b")])
    plan.warm = WarmPlan([prompt("x", "a"), prompt("y", "b"), prompt("z", "b")])
    with running(plan) as server:
        wait_until(lambda: len(warmed(first)) == 1 and len(warmed(second)) == 2)
        server.service.context.pool.healths["a"] = EngineHealth(pid=7)  # pyright: ignore
        wait_until(lambda: len(warmed(first)) == 2)
        second.become(EngineState.UNLOADED)
        time.sleep(0.3)
        second.become(EngineState.READY)
        wait_until(lambda: len(warmed(second)) == 4)


def test_what_can_not_be_warmed_is_said_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture):
    def no_journal(model_id: str, num_heads: int) -> list[tuple[int, ...]]:
        raise StoreError("the journal is broken")

    plan = Plan(entries=[entry(window=30)])
    long = prompt("much too long " * 20)
    plan.warm = WarmPlan([prompt("x", "unknown"), long, prompt("good")], 2, no_journal)
    with running(plan) as server:
        wait_until(lambda: "the journal is broken" in caplog.text)
        (only,) = warmed(server.engine)
        assert b"good" in bytes(only.tokens)
        assert caplog.text.count("there is no model 'unknown'") == 1
        assert f"{long.where} is not warmed" in caplog.text
        assert server.chat().status_code == 200


def test_a_refusal_by_the_engine_is_said(caplog: pytest.LogCaptureFixture):
    def refuse(request: EngineRequest) -> Iterable[Sequence[Event]]:
        yield [Failed(request.id, FailureCode.BAD_REQUEST, "it is too long for this memory")]

    engine = ScriptedEngine(script=refuse)
    with running(Plan(engines=[engine], warm=WarmPlan([prompt()]))):
        wait_until(lambda: "it is too long for this memory" in caplog.text)
        time.sleep(0.3)
        assert len(warmed(engine)) == 1


def test_a_prompt_beside_which_the_engine_died_is_left_out(caplog: pytest.LogCaptureFixture):
    engine = ScriptedEngine(script=held)
    plan = Plan(engines=[engine], warm=WarmPlan([prompt("bad"), prompt("good")]))
    with running(plan):
        wait_until(lambda: len(warmed(engine)) == 1)
        engine.become(EngineState.STARTING)
        wait_until(lambda: "bad.json is left out" in caplog.text)
        assert warmed(engine)[0].id in engine.aborted
        engine.script = say("ok")
        engine.become(EngineState.READY)
        wait_until(lambda: len(warmed(engine)) == 2)
        assert b"good" in bytes(warmed(engine)[1].tokens)


def test_a_stop_does_not_wait_for_it():
    engine = ScriptedEngine(script=held)
    with running(Plan(engines=[engine], warm=WarmPlan([prompt()]))):
        wait_until(lambda: len(warmed(engine)) == 1)
        started = time.monotonic()
    assert time.monotonic() - started < 8, "a drain takes ten"
    assert engine.aborted == [warmed(engine)[0].id]


def test_the_store_setting_of_the_model_holds():
    plan = Plan(cache=Cache(store="memory"), warm=WarmPlan([prompt()]))
    with running(plan) as server:
        wait_until(lambda: len(warmed(server.engine)) == 1)
        assert warmed(server.engine)[0].store is StorePolicy.MEMORY


def resolved(tmp_path: Path, *names: str):
    paths = ", ".join(json.dumps(name) for name in names)
    (tmp_path / "config.toml").write_text(f"[cache]\nwarm_prompts = [{paths}]\n")
    return load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)


BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_files_of_both_dialects(tmp_path: Path):
    claude = {**BODY, "system": "Be kind"}
    (tmp_path / "one.json").write_text(json.dumps(BODY, indent=1))
    lines = [json.dumps(BODY), "", json.dumps(claude), ""]
    (tmp_path / "more.jsonl").write_text("\n".join(lines))
    found = read_warm_prompts(resolved(tmp_path, "one.json", "more.jsonl"))
    assert [p.where.removeprefix(f"{tmp_path}/") for p in found] == [
        "one.json",
        "more.jsonl:1",
        "more.jsonl:3",
    ]
    assert [type(p.dialect).__name__ for p in found] == ["Chat", "Chat", "Messages"]
    assert found[2].dialect.decode(found[2].body).messages[0]["content"] == "Be kind"
    assert {p.model for p in found} == {"m"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "{", "a.json: not valid JSON"),
        ("a.json", "", "a.json: not valid JSON"),
        ("a.json", "[]", "a.json: Expected `object`"),
        ("a.json", "null", "a.json: Expected `object`"),
        ("a.json", "[" * 100_000, "not valid JSON"),
        ("a.json", '{"model": "m"}', "messages"),
        ("a.json", '{"model": 7, "messages": []}', "$.model"),
        ("a.json", '{"model": "m", "messages": []}', "$.messages"),
        ("a.json", '{"model": "m", "messages": [{"role": "user"}]}', "$.messages[0]"),
        ("a.json", '{"model": "m", "system": 7, "messages": []}', "$.system"),
        ("a.json", json.dumps({**BODY, "tools": [{"type": "function"}]}), "$.tools"),
        ("a.jsonl", json.dumps(BODY) + '\n{"model": 1}\n', "a.jsonl:2: "),
        ("a.jsonl", json.dumps(BODY) + "\n{\n", "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "\n\n", "holds no request body"),
        ("a.jsonl", (json.dumps(BODY) + "\n") * 1001, "too many"),
        ("a.json", "\x00", "not valid JSON"),
    ],
)
def test_a_bad_file_is_named_with_its_place(tmp_path: Path, name: str, text: str, says: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_warm_prompts(resolved(tmp_path, name))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/config.toml:2: 'cache.warm_prompts': ")
    assert says in problem
    assert len(problem) < 1000
    assert caught.value.exit_code == 2


def test_files_that_can_not_be_read(tmp_path: Path):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "latin.json").write_bytes(b'{"model": "\xff", "messages": []}')
    found = resolved(tmp_path, "missing.json", "folder.json", "latin.json", "/dev/zero")
    with pytest.raises(SettingsError) as caught:
        read_warm_prompts(found)
    missing, folder, latin, zero = caught.value.problems
    assert "missing.json: cannot be read: No such file" in missing
    assert "folder.json: cannot be read: not a file" in folder
    assert "latin.json: not valid JSON" in latin
    assert "/dev/zero: cannot be read: not a file" in zero


def test_a_file_that_is_too_large(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps(BODY))
    found = resolved(tmp_path, "a.json")
    small = replace(found.settings, server=replace(found.settings.server, max_body=10))
    with pytest.raises(SettingsError, match=r"larger than server\.max_body, 10 bytes"):
        read_warm_prompts(replace(found, settings=small))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[cache]\nwarm_heads = -1", "-1 is not within 0 to 1000"),
        ("[cache]\nwarm_heads = 1001", "1001 is not within 0 to 1000"),
        ("[cache]\nwarm_heads = true", "expected a whole number"),
        ('[cache]\nwarm_heads = "two"', "expected a whole number"),
        ("[cache]\nwarm_heads = 1.5", "expected a whole number"),
        ('[cache]\nwarm_prompts = "a.json"', "expected a list of paths"),
        ("[cache]\nwarm_prompts = [7]", "expected a list of paths"),
        ('[cache]\nwarm_prompts = [""]', "expected a list of paths"),
        ('[cache]\nwarm_prompts = ["a\\u0000b"]', "expected a list of paths"),
        ('[cache]\nwarm_prompt = ["a"]', "did you mean 'warm_prompts'"),
        ('[model."*".cache]\nwarm_heads = 1', "cannot be set for one model"),
        ('[engine]\nwarm_up = "maybe"', "expected true or false"),
        ("[engine]\nwarm_up = 1", "expected true or false"),
    ],
)
def test_settings_that_can_not_be_used(tmp_path: Path, text: str, says: str):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path}/config.toml:2: ")
    assert says in problem


def test_a_model_can_do_without_its_warm_up(tmp_path: Path):
    (tmp_path / "config.toml").write_text('[model."big*".engine]\nwarm_up = false\n')
    found = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)
    assert engine_config(entry("small", path=str(tmp_path / "small")), found).warm_up
    assert not engine_config(entry("big-one", path=str(tmp_path / "big")), found).warm_up


def test_paths_are_those_of_the_file_that_names_them(tmp_path: Path):
    assert resolved(tmp_path, "p/a.json").settings.cache.warm_prompts == (tmp_path / "p/a.json",)
    (tmp_path / "config.toml").unlink()
    here = tmp_path / "here"
    here.mkdir()
    given = load(
        cli={"cache.warm_prompts": ("a.json", "/b.json")},
        env={"OMLX_HOME": str(tmp_path)},
        cwd=here,
    )
    assert given.settings.cache.warm_prompts == (here / "a.json", Path("/b.json"))


@pytest.mark.parametrize(
    ("given", "says", "num_heads"),
    [
        ({"cache.enabled": "false"}, "the cache is off", 0),
        ({"journal.enabled": "false"}, "the journal, which tells which, is off", 0),
        ({}, "", 3),
    ],
)
def test_what_settings_leave_of_the_plan(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, str],
    says: str,
    num_heads: int,
):
    found = load(
        cli={"cache.warm_heads": "3", **given}, env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path
    )
    assert warm_plan(found).num_heads == num_heads
    assert says in caplog.text and bool(caplog.text) is bool(says)
