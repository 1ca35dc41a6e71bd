"""The process that fetches a model for a server: progress, its end, and what it refuses first."""

import asyncio

import pytest

from omlx.errors import ModelError, UsageError
from omlx.models.pull_task import pull_model
from omlx.server.pulls import PullFailed, fetch_in_process
from tests.fakes.hub import FakeHub, model_files, serving


@pytest.fixture
def hub(monkeypatch):
    with serving(FakeHub(repos={"org/name": model_files()})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def spec(tmp_path, model="org/name", ceiling=None):
    return {"model": model, "folder": str(tmp_path), "ceiling_bytes": ceiling}


def test_a_model_comes_with_progress_and_is_there(hub, tmp_path):
    heard = []
    result = pull_model(spec(tmp_path), lambda *step: heard.append(step))
    assert result["path"] == str(tmp_path / "org" / "name")
    assert (tmp_path / "org" / "name" / "model.safetensors").stat().st_size > 10**6
    assert {stage for _, _, stage in heard} == {"download"}
    done = [done for done, _, _ in heard]
    assert done == sorted(done) and heard[-1][0] == heard[-1][1]


def test_what_can_not_be_served_here_is_refused_before_its_weights(hub, tmp_path):
    with pytest.raises(ModelError, match=r"engine\.memory_limit allows"):
        pull_model(spec(tmp_path, ceiling=1000), lambda *_: None)
    assert hub.asked_for("model.safetensors") == []
    hub.repos["org/name"] = model_files(**{"config.json": b'{"model_type": "no-such-thing"}'})
    with pytest.raises(ModelError, match="does not know its architecture"):
        pull_model(spec(tmp_path), lambda *_: None)
    assert hub.asked_for("model.safetensors") == []


def test_a_name_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="names no model"):
        pull_model(spec(tmp_path, model="../x"), lambda *_: None)


def test_a_process_that_dies_or_refuses_is_an_error_with_its_words(tmp_path, monkeypatch):
    refused = spec(tmp_path, model="../x")
    with pytest.raises(PullFailed, match="names no model"):
        asyncio.run(fetch_in_process(refused, lambda *_: None))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PullFailed, match="its process"):
        asyncio.run(fetch_in_process(refused, lambda *_: None))
