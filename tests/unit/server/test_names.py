"""Profiles and aliases over HTTP, and models that are refused: in both dialects."""

from collections.abc import Iterator

import pytest

from omlx.settings.build import ModelSettings
from omlx.settings.schema import Sampling
from tests.fakes.engine import ScriptedEngine
from tests.fakes.server import Plan, Running, entry, running
from tests.fakes.text import FakeText
from tests.unit.server import strict
from tests.unit.server.test_app import ANTHROPIC

TOO_LARGE = "the model 'huge' has 160.0 GB of weights (160,000,000,000 bytes), and"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    plan = Plan(
        text=FakeText(context_window=5000),
        entries=[entry("qwen3-8b", window=4096), entry("tiny", window=512)],
        engines=[ScriptedEngine("qwen3-8b"), ScriptedEngine("tiny")],
        profiles={"qwen3-8b": ["thinking"]},
        aliases={"sonnet": "qwen3-8b:thinking", "gone": "qwen3-8"},
        refused={"huge": f"{TOO_LARGE} engine.memory_limit allows 16.0 GB"},
        by_name={
            "qwen3-8b:thinking": ModelSettings(
                Sampling(temperature=0.6), 1024, {}, {}, thinking=True
            )
        },
    )
    with running(plan) as server:
        yield server


def test_case_k23_the_list_has_models_profiles_and_aliases(served: Running) -> None:
    listed = served.http.get("/v1/models").json()["data"]
    assert [(m["id"], m["root"], m["profile"], m["context_window"]) for m in listed] == [
        ("qwen3-8b", "qwen3-8b", None, 4096),
        ("qwen3-8b:thinking", "qwen3-8b", "thinking", 1024),
        ("tiny", "tiny", None, 512),
        ("sonnet", "qwen3-8b", "thinking", 1024),
    ]
    assert all(m["capabilities"]["streaming"] is True for m in listed)
    assert all(m["capabilities"]["vision"] is False for m in listed)
    theirs = served.http.get("/v1/models", headers=ANTHROPIC).json()["data"]
    assert [(m["id"], m["max_input_tokens"]) for m in theirs] == [
        (m["id"], m["context_window"]) for m in listed
    ]
    assert theirs[0]["capabilities"]["image_input"] == {"supported": False}


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-8b:thinking", "sonnet"])
def test_case_k23_each_can_be_asked_for(served: Running, name: str) -> None:
    by_id = {m["id"]: m for m in served.http.get("/v1/models").json()["data"]}
    assert served.http.get(f"/v1/models/{name}").json() == by_id[name]
    assert served.http.get("/v1/models/demo").status_code == 404


def test_case_k23_an_unknown_one_is_404_in_the_dialect(served: Running) -> None:
    for name in ("nothing", "qwen3-8b:none", "gone"):
        answer = served.http.get(f"/v1/models/{name}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        answer = served.http.get(f"/v1/models/{name}", headers=ANTHROPIC)
        assert strict.anthropic_error(answer.content).error.type == "not_found_error"
    said = served.chat(model="Qwen3-8B").json()["error"]["message"]
    assert "did you mean 'qwen3-8b'?" in said
    said = served.chat(model="gone").json()["error"]["message"]
    assert "'gone' stands for 'qwen3-8', which is no model here" in said


@pytest.mark.parametrize("name", ["qwen3-8b:thinking", "sonnet"])
def test_a_profile_is_the_same_engine_with_its_own_settings(served: Running, name: str) -> None:
    engine = served.plan.engines[0]
    engine.submitted.clear()
    answer = served.chat(model=name)
    assert answer.status_code == 200
    assert answer.json()["model"] == "qwen3-8b:thinking"
    assert served.message(model=name).json()["model"] == "qwen3-8b:thinking"
    served.chat(model="qwen3-8b")
    served.chat(model=name, temperature=0.2)
    heats = [request.sampling.temperature for request in engine.submitted]
    assert heats == [0.6, 0.6, 1.0, 0.2]


def test_a_profile_may_switch_thinking(served: Running) -> None:
    served.chat(model="sonnet")
    assert served.text.extra == {"enable_thinking": True, "thinking": True}
    served.chat(model="qwen3-8b")
    assert served.text.extra == {}


def test_the_window_of_a_profile_is_kept(served: Running) -> None:
    long = "x" * 2000
    assert served.chat(long, model="qwen3-8b").status_code == 200
    refused = served.chat(long, model="qwen3-8b:thinking")
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_case_m13_a_model_larger_than_memory_is_refused_with_numbers(served: Running) -> None:
    answer = served.chat(model="huge")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "model_too_large", "model")
    assert "160,000,000,000 bytes" in error["message"]
    answer = served.message(model="huge")
    assert answer.status_code == 400
    said = strict.anthropic_error(answer.content).error
    assert said.type == "invalid_request_error" and "16.0 GB" in said.message
    assert "huge" not in [m["id"] for m in served.http.get("/v1/models").json()["data"]]
