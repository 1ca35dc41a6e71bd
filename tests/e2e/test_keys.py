"""Several API keys against the real server: who gets in, who shares the cache, what the log has."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.live import Live, chat, run_omlx

pytestmark = pytest.mark.e2e
SYSTEM = "You are a careful agent that reads files, runs tests and explains what it does. " * 40
MARKER = "the-marker-of-a-prompt"
ARGS = ("--cache-write-delay", "100ms", "--cache-load", "always", "--cache-min-free", "0")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))


def body(text: str = MARKER) -> dict[str, Any]:
    return chat("tiny", text, max_tokens=2, history=[{"role": "system", "content": SYSTEM}])


def num_cached(live: Live, key: str, **headers: str) -> int:
    """How many tokens of the one prompt came from the cache."""
    code, answer = live.post("/v1/chat/completions", body(), {"X-Api-Key": key, **headers})
    assert code == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def add(home: Path, name: str, *words: str) -> str:
    made = run_omlx("key", "create", name, *words, home=home)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def inspect(home: Path, *words: str) -> Any:
    found = run_omlx("cache", "inspect", "--json", *words, home=home)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_p22_one_key_learns_nothing_of_anothers_prompts(tiny_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ann, bob = add(home, "ann"), add(home, "bob")
    args = ("--model-dir", str(tiny_model.parent), "--cache-isolate", "key", *ARGS)
    with Live(*args, home=home) as live:
        assert live.post("/v1/chat/completions", body())[0] == 401
        assert num_cached(live, ann) == 0
        most = num_cached(live, ann)
        assert most > 500
        assert num_cached(live, bob) == 0, "the same prompt, and nothing of it is known"
        assert num_cached(live, bob) == most
        salt = {"X-Omlx-Cache-Salt": "a conversation"}
        assert [num_cached(live, ann, **salt) for _ in range(2)] == [0, most]
        log = "".join(live.lines)
        assert live.stop() == 0
    with Live(*args, home=home) as live:
        assert num_cached(live, ann) == most, "from the disk tier"
        assert run_omlx("key", "revoke", "bob", home=home).returncode == 0
        assert live.post("/v1/chat/completions", body(), {"X-Api-Key": bob})[0] == 401
        bob = add(home, "bob")
        assert num_cached(live, bob) == 0, "a new key of the old name is another one"
        log += "".join(live.lines)
        assert live.stop() == 0
    for secret in (ann, bob, ann[11:], bob[11:], MARKER):
        assert secret not in log
        assert all(secret.encode() not in file.read_bytes() for file in home.rglob("*.toml"))
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps(body()))
    settings = ("--model-dir", str(tiny_model.parent))
    words = ("--prompt", str(prompt), *settings)
    assert inspect(home, *words)["cached"] == 0
    assert inspect(home, *words, "--key", "ann")["cached"] == most
    assert inspect(home, "--request", "last", *settings)["cached"] == 0


def test_without_isolation_they_share(tiny_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ann, bob = add(home, "ann"), add(home, "bob")
    with Live("--model-dir", str(tiny_model.parent), *ARGS, home=home) as live:
        assert num_cached(live, ann) == 0
        assert num_cached(live, bob) > 500
        assert num_cached(live, ann, **{"X-Omlx-Cache-Salt": "mine"}) == 0


def test_a_running_server_learns_of_its_first_key(tiny_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Live("--model-dir", str(tiny_model.parent), *ARGS, home=home) as live:
        assert live.post("/v1/chat/completions", body())[0] == 200
        boss = add(home, "boss", "--scope", "admin")
        assert live.post("/v1/chat/completions", body())[0] == 401
        assert num_cached(live, boss) > 500
