"""`omlx key`: a key is shown once, works at once, and is gone when it is removed."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.server.keyring import KeyRing
from tests.unit.cli.conftest import Cli


@pytest.fixture
def path(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMLX_HOME", str(home))
    return home / "keys.toml"


@pytest.fixture
def key(cli: Cli) -> Callable[..., str]:
    """Calls `omlx key`, which must end with a code."""

    def call(*args: str, code: int = 0) -> str:
        outcome = cli("key", *args)
        assert outcome.code == code, outcome
        return outcome.out

    return call


def test_a_key_from_its_making_to_its_end(path: Path, key: Callable[..., str]) -> None:
    sent = key("add", "laptop", "--rpm", "60", "--expires", "30d").strip()
    assert len(sent) > 30 and sent not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [shown] = json.loads(key("list", "--json"))["keys"]
    assert (shown["name"], shown["scope"], shown["has_expired"]) == ("laptop", "inference", False)
    assert shown["prefix"] in sent[:12] and len(shown["prefix"]) < 10
    assert sent not in key("list")
    ring = KeyRing(path, None)
    ring.load()
    assert ring.has_any
    key("remove", "laptop")
    assert json.loads(key("list", "--json"))["keys"] == []


def test_names_are_not_used_twice_and_limits_are_numbers(
    path: Path, key: Callable[..., str]
) -> None:
    key("add", "a")
    key("add", "a", code=1)
    key("add", "b", "--rpm", "0", code=2)
    key("add", "b", "--expires", "soon", code=1)
    key("remove", "none", code=1)
