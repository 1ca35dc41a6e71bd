"""What `omlx usage` tells of a real server, once that has ended or was killed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.live import Live, chat, run_omlx, wait_until

pytestmark = pytest.mark.e2e
TEXT = " ".join(f"fact number {i}" for i in range(300))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))


def usage(home: Path) -> Any:
    done = run_omlx("usage", "--days", "2", "--json", home=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ask(live: Live) -> dict[str, int]:
    status, answer = live.post("/v1/chat/completions", chat("tiny", TEXT), {"user-agent": "me/1"})
    assert status == 200, answer
    return answer["usage"]


def stored_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "cache" / "blocks").rglob("*.safetensors"))


def test_what_is_written_at_the_end_of_an_engine_counts(tiny_model: Path, tmp_path: Path) -> None:
    """Nothing is written before the end; then the whole prompt is at once."""
    args = ("--model-dir", str(tiny_model.parent), "--cache-write-delay", "1h")
    with Live(*args, home=tmp_path) as live:
        told = ask(live)
        assert stored_bytes(tmp_path) == 0
        assert live.stop() == 0
    found = usage(tmp_path)
    assert found["disk"]["written_bytes"] == stored_bytes(tmp_path) > 0
    (client,) = found["clients"]
    assert (client["client"], client["requests"], client["turns"]) == ("me", 1, 1)
    assert client["prompt_tokens"] == client["computed"] == told["prompt_tokens"]
    assert client["generated"] == told["completion_tokens"]


def test_a_killed_server_loses_no_request_that_it_had_noted(
    tiny_model: Path, tmp_path: Path
) -> None:
    args = ("--model-dir", str(tiny_model.parent), "--cache-write-delay", "100ms")
    tokens = 0
    for num in (1, 2):
        with Live(*args, home=tmp_path) as live:
            for _ in range(2):
                told = ask(live)
                tokens += told["prompt_tokens"]
            wait_until(lambda n=num: usage(tmp_path)["total"]["requests"] == 2 * n)
            live.kill()
    total = usage(tmp_path)["total"]
    assert (total["answers"], total["prompt_tokens"]) == (4, tokens)
    assert total["cached_disk"] > 0 and total["cached_memory"] > 0
