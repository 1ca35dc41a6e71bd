"""Point 7, cases M13 and K23: a model larger than memory, and what the list of models says."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.conftest import Figure
from tests.live import Live, chat, run_omlx

ANTHROPIC = {"anthropic-version": "2023-06-01"}
SETTINGS = """
[models.alias]
sonnet = "tiny:exact"

[model."tiny".profile.exact]
sampling.temperature = 0.0
context_window = 2048
"""


def huge_model(folder: Path) -> tuple[Path, int]:
    """A model of ten times this machine's memory, in sparse files; and its bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    size = 5 * psutil.virtual_memory().total
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name in names:
        (folder / name).touch()
        os.truncate(folder / name, size)
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder, 2 * size


def test_case_m13_serve_ends_with_the_numbers(tmp_path: Path, figure: Figure) -> None:
    folder, size = huge_model(tmp_path / "models" / "huge")
    started = time.monotonic()
    done = run_omlx("serve", "--model-dir", str(folder), "--port", "0", home=tmp_path)
    seconds = time.monotonic() - started
    assert done.returncode == 1
    assert f"({size:,} bytes)" in done.stderr and "engine.memory_limit allows" in done.stderr
    assert "hint: " in done.stderr and "Traceback" not in done.stderr
    figure(
        f"M13: {size / 1e9:.0f} GB of weights refused from sizes in {seconds:.1f} s, exit code 1"
    )


def test_case_m13_the_server_refuses_it_and_serves_the_others(
    tiny_model: Path, tmp_path: Path, figure: Figure
) -> None:
    _, size = huge_model(tmp_path / "models" / "huge")
    (tmp_path / "models" / "tiny").symlink_to(tiny_model)
    with Live("--model-dir", str(tmp_path / "models"), home=tmp_path) as live:
        status, answer = live.post("/v1/chat/completions", chat("huge", "hi"))
        assert (status, answer["error"]["code"]) == (400, "model_too_large")
        assert f"({size:,} bytes)" in answer["error"]["message"]
        message = {**chat("huge", "hi"), "model": "huge"}
        theirs, answer = live.post("/v1/messages", message)
        assert (theirs, answer["error"]["type"]) == (400, "invalid_request_error")
        served, _ = live.post("/v1/chat/completions", chat("tiny", "hi"))
        assert served == 200
    figure(f"M13: {status} in both dialects with the numbers, the other model answers {served}")


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    (home / "config.toml").write_text(SETTINGS)
    with Live("--model-dir", str(tiny_model), home=home) as server:
        yield server


def test_case_k23_the_list(live: Live, figure: Figure) -> None:
    listed = {model["id"]: model for model in live.get("/v1/models")["data"]}
    assert [*listed] == ["tiny", "tiny:exact", "sonnet"]
    windows = [model["context_window"] for model in listed.values()]
    assert windows == [8192, 2048, 2048]
    for name, model in listed.items():
        assert live.get(f"/v1/models/{name}") == model
        assert model["capabilities"]["streaming"] is True
    assert live.get("/v1/models/other")["error"]["code"] == "model_not_found"
    status, answer = live.post("/v1/messages", {**chat("other", "hi")}, ANTHROPIC)
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    figure(f"K23: {', '.join(listed)} listed with windows {windows}; unknown is 404 in the dialect")


def test_profiles_share_one_engine(live: Live, figure: Figure) -> None:
    answers = {}
    for name in ("tiny", "tiny:exact", "sonnet"):
        status, body = live.post("/v1/chat/completions", chat(name, "hello there"))
        assert status == 200
        answers[name] = (body["model"], body["choices"][0]["message"]["content"])
    assert [model for model, _ in answers.values()] == ["tiny", "tiny:exact", "tiny:exact"]
    assert len({text for _, text in answers.values()}) == 1
    engines = [
        child
        for child in psutil.Process(live.process.pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]
    assert len(live.status()["models"]) == 1
    figure(f"3 names, {len(live.status()['models'])} engine, {len(engines)} child process(es)")
