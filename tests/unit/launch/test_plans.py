"""How each client is started: variables, files and arguments, word for word."""

from pathlib import Path

import pytest

from omlx.launch.catalog import read_catalog
from omlx.launch.plan import Setup, with_certificate
from omlx.launch.recipes import RECIPES
from omlx.launch.shell import shell_lines
from omlx.settings.places import data_dir
from tests.golden import same_as_golden
from tests.unit.launch.setups import SECRET, setup

CLIENTS = read_catalog(data_dir("profiles") / "clients")
AGENTS = sorted(name for name, client in CLIENTS.items() if client.is_agent)
EDITORS = sorted(name for name, client in CLIENTS.items() if not client.is_agent)


def shown(name: str, given: Setup) -> str:
    recipe = RECIPES[name]
    says = f"{recipe.says(given)}\n" if recipe.says else ""
    if recipe.plan is None:
        return says
    return says + shell_lines(CLIENTS[name].executables[0], recipe.plan(given), given.folder) + "\n"


def test_every_client_has_its_module() -> None:
    assert sorted(RECIPES) == sorted(CLIENTS)
    assert len(AGENTS) == 13 and EDITORS == ["cursor", "vscode-continue", "zed"]
    for name in AGENTS:
        assert RECIPES[name].plan is not None
    for name in EDITORS:
        assert RECIPES[name].plan is None and RECIPES[name].says is not None


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_what_is_set(name: str) -> None:
    same_as_golden(f"launch/{name}.txt", shown(name, setup()))


@pytest.mark.parametrize("name", AGENTS)
def test_the_usable_window_is_passed(name: str) -> None:
    plan = RECIPES[name].plan
    assert plan is not None
    texts = [shown(name, setup(window=window)) for window in (100_000, 64_000)]
    assert texts[0] != texts[1]
    for text, window in zip(texts, (100_000, 64_000), strict=True):
        limits = (window, int(window * 0.84), window - window // 8)
        assert any(str(limit) in text for limit in limits)


@pytest.mark.parametrize("name", AGENTS)
def test_the_key_is_in_no_argument(name: str) -> None:
    recipe = RECIPES[name].plan
    assert recipe is not None
    plan = recipe(setup())
    assert not [arg for arg in plan.args if SECRET in arg]
    assert SECRET in [*plan.env.values()] or [
        text for text in plan.files.values() if SECRET in text
    ]
    assert SECRET not in repr(plan) and SECRET not in repr(setup())


@pytest.mark.parametrize("name", AGENTS)
def test_without_a_key_the_word_local_is_sent(name: str) -> None:
    assert "local" in shown(name, setup(key=None))


@pytest.mark.parametrize("name", AGENTS)
def test_the_users_arguments_come_last_and_whole(name: str) -> None:
    recipe = RECIPES[name].plan
    assert recipe is not None
    args = ("exec", "--flag", "two words", "$HOME", "-")
    assert recipe(setup(args=args)).args[-len(args) :] == args


def test_openclaw_chats_where_nothing_else_is_asked_for() -> None:
    recipe = RECIPES["openclaw"].plan
    assert recipe is not None and recipe(setup(args=())).args == ("chat",)


@pytest.mark.parametrize(("name", "word"), [("pi", "install"), ("qwen-code", "mcp")])
def test_subcommands_get_no_options_of_a_session(name: str, word: str) -> None:
    recipe = RECIPES[name].plan
    assert recipe is not None and recipe(setup(args=(word, "x"))).args == (word, "x")


def test_a_copy_of_the_users_configuration_has_all_of_theirs(tmp_path: Path) -> None:
    (tmp_path / ".hermes").mkdir()
    (tmp_path / ".hermes" / "config.yaml").write_text("terminal: {backend: local} # mine\n")
    (tmp_path / ".openclaw").mkdir()
    (tmp_path / ".openclaw" / "openclaw.json").write_text(
        "{\n  channels: {telegram: true}, // mine\n}"
    )
    for name, file, text in (
        ("hermes", "config.yaml", "terminal: {backend: local} # mine\n"),
        ("openclaw", "openclaw.json", "channels: {telegram: true}, // mine"),
    ):
        recipe = RECIPES[name].plan
        assert recipe is not None and text in recipe(setup(tmp_path)).files[file]


def test_claude_code_says_what_its_own_settings_overrule(tmp_path: Path) -> None:
    recipe = RECIPES["claude-code"].plan
    assert recipe is not None
    folder = tmp_path / ".claude"
    folder.mkdir()
    for text, expected in (
        ('{"env": {"ANTHROPIC_BASE_URL": "https://a.example", "X": "1"}}', "ANTHROPIC_BASE_URL"),
        ('{"env": {"X": "1"}}', ""),
        ("{", ""),
        ('{"env": 3}', ""),
    ):
        (folder / "settings.json").write_text(text)
        notes = recipe(setup(tmp_path)).notes
        assert len(notes) == bool(expected) and expected in " ".join(notes)


def test_the_certificate_of_the_server_is_trusted() -> None:
    recipe = RECIPES["codex"].plan
    assert recipe is not None
    given = setup(certificate=Path("/cert.pem"))
    env = with_certificate(recipe(given), given).env
    assert env["NODE_EXTRA_CA_CERTS"] == env["SSL_CERT_FILE"] == "/cert.pem"
    assert "SSL_CERT_FILE" not in with_certificate(recipe(setup()), setup()).env
