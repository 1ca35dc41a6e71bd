"""`omlx config show`: values, who set them, and masked secrets."""

import json
from pathlib import Path

import pytest

from omlx.settings.leaf import leaves
from tests.unit.cli.conftest import Cli


@pytest.fixture
def layered(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A user's file, a project's file, a variable, a profile and a key."""
    (home / "profiles").mkdir(parents=True)
    (home / "config.toml").write_text(
        "[server]\nport = 8001\napi_key = 'hush-user'\n[cache]\nmax_size = '5GB'\n"
    )
    (home / "profiles" / "big.toml").write_text("[cache]\nmax_size = '50GB'\n")
    Path("omlx.toml").write_text("[server]\nport = 8002\n[model.'tiny']\nsampling.top_k = 5\n")
    monkeypatch.setenv("OMLX_SERVER_PORT", "8003")
    monkeypatch.setenv("OMLX_SERVER_API_KEY", "hush-env")
    return cli


def _rows(out: str) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    path = ""
    for line in out.splitlines():
        path = line.split()[0] if not line.startswith(" ") else path
        rows.setdefault(path, []).append(" ".join(line.split()))
    return rows


def test_values_only(layered: Cli) -> None:
    outcome = layered("config", "show")
    rows = _rows(outcome.out)
    assert list(rows) == list(leaves())
    assert rows["server.port"] == ["server.port 8003"]
    assert rows["cache.max_size"] == ["cache.max_size 5GB"]
    assert (outcome.code, outcome.err) == (0, "")


def test_origins_and_what_they_shadow(layered: Cli, home: Path) -> None:
    rows = _rows(layered("config", "show", "--origin", "--profile", "big").out)
    assert rows["server.port"] == [
        "server.port 8003 env OMLX_SERVER_PORT",
        "8002 shadowed: file omlx.toml:2",
        f"8001 shadowed: file {home}/config.toml:2",
    ]
    assert rows["cache.max_size"] == [
        f"cache.max_size 50GB profile {home}/profiles/big.toml:2",
        f"5GB shadowed: file {home}/config.toml:5",
    ]
    assert rows["log.level"] == ["log.level info default"]


def test_a_profile_may_be_named_before_the_command(layered: Cli) -> None:
    assert _rows(layered("--profile", "big", "config", "show").out)["cache.max_size"] == [
        "cache.max_size 50GB"
    ]


@pytest.mark.parametrize("flags", [[], ["--origin"], ["--json"], ["--origin", "--json"]])
def test_secrets_are_masked(layered: Cli, flags: list[str]) -> None:
    outcome = layered("config", "show", *flags)
    assert "hush" not in outcome.out + outcome.err
    assert "********" in outcome.out


def test_json(layered: Cli, home: Path) -> None:
    plain = json.loads(layered("config", "show", "--json").out)
    assert (plain["home"], plain["profile"]) == (str(home), None)
    assert plain["settings"]["server.port"] == 8003
    assert plain["settings"]["models.dir"] == []
    assert plain["settings"]["server.api_key"] == "********"
    detailed = json.loads(layered("config", "show", "--json", "--origin").out)
    assert detailed["settings"]["server.port"] == {
        "value": 8003,
        "origin": {"kind": "env", "where": "OMLX_SERVER_PORT"},
        "shadowed": [
            {"value": 8002, "origin": {"kind": "file", "where": "omlx.toml:2"}},
            {"value": 8001, "origin": {"kind": "file", "where": f"{home}/config.toml:2"}},
        ],
    }


def test_one_model(layered: Cli, home: Path) -> None:
    folder = home / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (folder / "omlx.toml").write_text("context_window = 512\n")
    outcome = layered("config", "show", "--model", "tiny", "--origin")
    rows = _rows(outcome.out)
    assert rows["sampling.top_k"] == ["sampling.top_k 5 file omlx.toml:4"]
    assert rows["context_window"] == [f"context_window 512 model {folder}/omlx.toml:1"]
    assert "server.port" not in rows
    assert outcome.err == ""


def test_a_model_that_is_not_there_counts_by_its_name(layered: Cli) -> None:
    outcome = layered("config", "show", "--model", "tiny/er")
    assert outcome.code == 0
    assert outcome.err == (
        "warning: no model 'tiny/er' is in the model folders; its name alone counts\n"
    )
