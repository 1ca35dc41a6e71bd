"""A start that is warm: the first real request finds its head in memory, whether the store had it
or not, and the status says what load and warm-up took."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.live import Live, chat, run_omlx, wait_until

pytestmark = pytest.mark.e2e
SYSTEM = "You are a careful agent that reads files, runs tests and explains what it does. " * 40
ARGS = ("--cache-write-delay", "100ms", "--cache-load", "always", "--cache-min-free", "0")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))


def ask(live: Live, text: str) -> tuple[int, dict[str, Any]]:
    """Cached tokens as the client sees them, and the request's figures."""
    code, answer = live.post(
        "/v1/chat/completions",
        chat("tiny", text, max_tokens=2, history=[{"role": "system", "content": SYSTEM}]),
    )
    assert code == 200, answer
    wait_until(lambda: live.status()["recent"])
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], live.status()["recent"][0]


def wait_warm(live: Live, count: int = 1) -> str:
    """The last line that says that something is warm."""

    def lines() -> list[str]:
        return [line for line in live.lines if " is warm for tiny" in line]

    wait_until(lambda: len(lines()) == count)
    return lines()[-1]


def test_a_warm_prompt_is_computed_at_first_and_loaded_later(
    tiny_model: Path, tmp_path: Path
) -> None:
    body = {
        "model": "tiny",
        "system": SYSTEM,
        "messages": [{"role": "user", "content": "What is to do?"}],
    }
    home = tmp_path / "home"
    home.mkdir()
    (home / "agent.json").write_text(json.dumps(body))
    (home / "config.toml").write_text('[cache]\nwarm_prompts = ["agent.json"]\n')
    args = ("--model-dir", str(tiny_model.parent), *ARGS)
    with Live(*args, home=home) as live:
        assert "(0 from memory, 0 from disk)" in wait_warm(live)
        assert live.status()["requests"]["finished"] == 0
        assert live.status()["recent"] == []
        cached, recent = ask(live, "Explain the failing test")
        assert cached == recent["cached_memory"] > 256
        assert recent["cached_disk"] == 0
        assert recent["prompt_tokens"] - cached < 40, "all of the head"
        model = live.model_status()
        assert model["load_s"] > 0 and model["warm_up_s"] > 0
        assert model["weight_bytes"] > 1_000_000
        assert live.stop() == 0
    with Live(*args, home=home) as live:
        line = wait_warm(live)
        assert "(0 from memory, 0 from disk)" not in line and "(0 from memory, " in line
        again, recent = ask(live, "Write a commit message")
        assert again == recent["cached_memory"] > 256
        assert recent["cached_disk"] == 0
        assert live.stop() == 0


def test_the_most_used_head_is_loaded_from_the_store(tiny_model: Path, tmp_path: Path) -> None:
    args = ("--model-dir", str(tiny_model.parent), *ARGS, "--warm-heads", "2")
    with Live(*args, home=tmp_path) as live:
        for text in ("First question of all", "Second one"):
            ask(live, text)
        assert live.stop() == 0
    with Live(*args, home=tmp_path) as live:
        line = wait_warm(live)
        assert "head 1 of 1 is warm" in line and "0 from disk" not in line
        cached, recent = ask(live, "A third that nobody has asked before")
        assert cached == recent["cached_memory"] > 256
        assert recent["cached_disk"] == 0
        assert recent["prompt_tokens"] - cached < 40
        assert live.stop() == 0


def test_a_bad_file_ends_the_start_with_its_place(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[cache]\nwarm_prompts = ["bad.jsonl"]\n')
    (tmp_path / "bad.jsonl").write_text('{"model": "tiny", "messages": 7}\n')
    done = run_omlx("serve", "--model-dir", str(tiny_model.parent), "--port", "0", home=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}/bad.jsonl:1: " in done.stderr and "$.messages" in done.stderr
    assert "Traceback" not in done.stderr
