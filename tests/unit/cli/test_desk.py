"""What the command line tells the admin page: verdicts, recipes, settings; no key and no text."""

import json
from pathlib import Path

import pytest

from omlx.cli.desk import CliDesk
from omlx.cli.view.lead import lead_json
from omlx.cli.view.status import read_status
from omlx.errors import OmlxError, SettingsError, UsageError
from omlx.launch.catalog import read_catalog
from omlx.launch.fits import fit
from omlx.server.desk import Wanted
from omlx.settings.build import load
from omlx.settings.places import data_dir
from tests.unit.cli.test_explain import DATE, Place, body, kept, place  # noqa: F401

CATALOG = data_dir("profiles") / "clients"
STATUS = {
    "last_day": {"clients": [{"client": "codex", "turns": 2, "uncached_mean": 20_000.0}]},
    "ttft_s": {"p50": 1.0, "p95": 2.0, "parts": {"prefill": 1.0}},
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliDesk:
    monkeypatch.setenv("OMLX_HOME", str(tmp_path))
    return desk_of(tmp_path)


def desk_of(home: Path, **given: object) -> CliDesk:
    cli = {name.replace("__", "."): value for name, value in given.items()}
    resolved = load(cli=cli, env={"OMLX_HOME": str(home)}, cwd=home)
    return CliDesk(resolved, cli, CATALOG)


def test_the_figures_are_those_of_the_other_views(desk: CliDesk) -> None:
    figures = desk.lead(STATUS)
    assert figures == lead_json(read_status(STATUS))
    assert figures["uncached_per_turn"]["verdict"] == "bad"  # type: ignore[index]


def test_clients_fit_as_launch_says(desk: CliDesk) -> None:
    known = read_catalog(CATALOG)
    shown = {str(one["name"]): one for one in desk.clients(8192)}
    assert set(shown) == set(known)
    for name, client in known.items():
        assert shown[name]["fit"] == fit(client, 8192).value
    assert {one["fit"] for one in desk.clients(None)} == {None}


@pytest.mark.parametrize("client", read_catalog(CATALOG))
def test_each_client_has_a_recipe_without_a_key(desk: CliDesk, client: str) -> None:
    wanted = Wanted(client, "a model", 100_000, "http://gpu.lan:8000", needs_key=True)
    found = desk.recipe(wanted)
    assert found["command"] == f"omlx launch {client} --model 'a model'"
    text = str(found["text"])
    assert "gpu.lan:8000" in text and "a model" in text
    assert found["has_placeholder"] is ("YOUR_API_KEY" in text)
    without = str(desk.recipe(Wanted(client, "m", 100_000, "http://h", needs_key=False))["text"])
    assert "YOUR_API_KEY" not in without


def test_a_recipe_that_can_not_be_made(desk: CliDesk) -> None:
    with pytest.raises(UsageError, match="unknown client 'nobody'"):
        desk.recipe(Wanted("nobody", "m", 9, "http://h", needs_key=False))
    with pytest.raises(OmlxError, match="Unix socket"):
        desk.recipe(Wanted("codex", "m", 9, "", needs_key=False))


def test_a_setting_is_written_read_back_and_taken_out(desk: CliDesk, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("# mine\n[cache]\nenabled = true # stays\n")
    desk.write("cache.max_size", "8GB")
    assert "# mine" in config.read_text() and "# stays" in config.read_text()
    assert desk.written().settings.cache.max_size == 8 * 10**9
    desk.write("cache.max_size", None)
    assert desk.written().settings.cache.max_size == "auto"
    assert "# stays" in config.read_text()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [("cache.max_size", "much", "cache.max_size"), ("server.port", "70000", "65535")],
)
def test_a_wrong_value_changes_nothing(
    desk: CliDesk, tmp_path: Path, path: str, value: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        desk.write(path, value)
    assert not (tmp_path / "config.toml").exists()


def test_why_a_request_missed_is_told_without_its_text(place: Place) -> None:  # noqa: F811
    shared = kept(place)
    desk = desk_of(place.home)
    found = desk.miss("new1")
    assert (found["miss"], found["token"], found["place"]) == ("diverged", shared, "system 0")
    assert found["change"] == "value changed"
    assert sum(row["tokens"] for row in found["parts"]) == found["prompt_tokens"]  # type: ignore
    said = json.dumps(found)
    for text in (*DATE["messages"], *body()["messages"]):  # type: ignore[misc]
        for word in ("careful", "Today", "brief", "bug"):
            assert word not in said, text
    with pytest.raises(OmlxError, match="no request"):
        desk.miss("zzz")


def test_the_server_is_not_opened_without_a_key(desk: CliDesk, tmp_path: Path) -> None:
    with pytest.raises(OmlxError, match="needs an API key"):
        desk.write("server.host", "0.0.0.0")
    assert not (tmp_path / "config.toml").exists()


def test_secrets_are_not_written(desk: CliDesk) -> None:
    with pytest.raises(UsageError, match="secret"):
        desk.write("server.api_key", "sk-secret")


def test_flags_of_the_run_come_before_the_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OMLX_HOME", str(tmp_path))
    desk = desk_of(tmp_path, server__keepalive="5s")
    desk.write("server.keepalive", "7s")
    assert desk.written().settings.server.keepalive == 5.0
    assert desk.written().origins["server.keepalive"].kind.value == "cli"
