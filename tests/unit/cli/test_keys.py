"""`omlx key`: a key is shown once, works at once, and is gone when it is removed."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.server.keyring import KeyRing
from omlx.settings.keys import Limits, Scope, read_keys
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
    sent = key("create", "laptop", "--rpm", "60", "--expires", "30d").strip()
    assert len(sent) > 30 and sent not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [shown] = json.loads(key("list", "--json"))["keys"]
    assert (shown["name"], shown["scope"], shown["has_expired"]) == ("laptop", "inference", False)
    assert shown["prefix"] in sent[:12] and len(shown["prefix"]) < 10
    assert sent not in key("list")
    ring = KeyRing(path, None)
    ring.load()
    assert ring.has_any
    key("revoke", "laptop")
    assert json.loads(key("list", "--json"))["keys"] == []


def test_names_are_not_used_twice_and_limits_are_numbers(
    path: Path, key: Callable[..., str]
) -> None:
    key("create", "a")
    key("create", "a", code=1)
    key("create", "b", "--rpm", "0", code=2)
    key("create", "b", "--expires", "soon", code=2)
    key("revoke", "none", code=1)


def test_a_key_is_printed_once_and_alone(cli: Cli, path: Path) -> None:
    outcome = cli("key", "create", "ann")
    assert outcome.code == 0
    sent = outcome.out.removesuffix("\n")
    assert sent.startswith("omlx-") and len(sent.split()) == 1
    assert sent not in outcome.err and "only time" in outcome.err
    (key,) = read_keys(path)
    assert key.is_of(sent.encode())
    assert (key.name, key.scope, key.limits) == ("ann", Scope.INFERENCE, Limits())
    for words in (("list",), ("list", "--json")):
        shown = cli("key", *words).out
        assert sent[5:11] in shown and sent[11:] not in shown


def test_what_a_key_may_do_is_kept(cli: Cli, path: Path) -> None:
    limits = ("--rpm", "60", "--tpm", "100000", "--concurrent", "2", "--expires", "30d")
    assert cli("key", "create", "boss", "--scope", "admin", *limits).code == 0
    (key,) = read_keys(path)
    assert (key.scope, key.limits) == (Scope.ADMIN, Limits(60, 100_000, 2))
    assert key.expires is not None and (key.expires - key.created).days in (29, 30)
    (shown,) = json.loads(cli("key", "list", "--json").out)["keys"]
    assert (shown["name"], shown["scope"], shown["tokens_per_minute"]) == ("boss", "admin", 100_000)
    titles, row = cli("key", "list").out.splitlines()
    assert titles.split()[:3] == ["NAME", "KEY", "SCOPE"]
    assert row.split()[0] == "boss" and row.split()[2:6] == ["admin", "60", "100000", "2"]


def test_a_key_is_taken_away(cli: Cli, path: Path) -> None:
    for name in ("ann", "bob"):
        cli("key", "create", name)
    assert cli("key", "revoke", "ann").code == 0
    assert [key.name for key in read_keys(path)] == ["bob"]
    outcome = cli("key", "revoke", "ann")
    assert (outcome.code, outcome.out) == (1, "")
    assert "no API key 'ann'" in outcome.err


def test_a_name_is_taken_once(cli: Cli, path: Path) -> None:
    cli("key", "create", "ann")
    before = read_keys(path)
    outcome = cli("key", "create", "ann")
    assert (outcome.code, outcome.out) == (1, "")
    assert read_keys(path) == before


@pytest.mark.parametrize(
    "words",
    [
        ["a b"], ["../a"], [""],
        ["a", "--rpm", "0"], ["a", "--tpm", "x"], ["a", "--scope", "owner"],
        ["a", "--concurrent", "-1"], ["a", "--expires", "soon"], ["a", "--expires", "9999999999d"],
    ],
)  # fmt: skip
def test_wrong_calls_make_nothing(cli: Cli, path: Path, words: list[str]) -> None:
    outcome = cli("key", "create", "--", *words) if words == [""] else cli("key", "create", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert not path.exists()


def test_no_keys(cli: Cli, path: Path) -> None:
    outcome = cli("key", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert "omlx key create" in outcome.err
    assert json.loads(cli("key", "list", "--json").out) == {"keys": []}


def test_a_file_that_others_can_read_is_not_touched(cli: Cli, path: Path) -> None:
    cli("key", "create", "ann")
    path.chmod(0o644)
    for words in (("list",), ("create", "bob"), ("revoke", "ann")):
        outcome = cli("key", *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert "chmod 600" in outcome.err


def test_inspecting_what_a_key_has_stored(cli: Cli, path: Path, tmp_path: Path) -> None:
    body = tmp_path / "a.json"
    body.write_text("{}")
    outcome = cli("cache", "inspect", "--prompt", str(body), "--key", "nobody")
    assert outcome.code == 2 and "no API key 'nobody'" in outcome.err
    assert cli("cache", "inspect", "--key", "nobody").code == 2
