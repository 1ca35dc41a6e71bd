"""`omlx config set`, `unset`, `get`, `path` and `edit`: what is written, and what is refused."""

import json
import stat
import sys
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.cli.configfile import HEAD, changed
from omlx.errors import OmlxError, SettingsError
from tests.unit.cli.conftest import Cli

HAND = """\
# My machine
[server]  # the web
port = 8001   # not 8000

[model."qwen*"]
sampling.top_k = 5 # few
"""


@pytest.fixture
def config(home: Path) -> Path:
    return home / "config.toml"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# ---- set


def test_a_new_file_is_made(cli: Cli, config: Path) -> None:
    outcome = cli("config", "set", "server.port", "8123")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert config.read_text() == HEAD + "[server]\nport = 8123\n"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]
    assert cli("config", "get", "server.port").out == "8123\n"


def test_several_values_are_written_together_in_their_types(
    cli: Cli, config: Path, tmp_path: Path
) -> None:
    outcome = cli(
        "config", "set", "cache.max_size=50GB", "server.drain_timeout=90", "models.dir=a",
        "models.dir=/b", "cache.enabled=off", "models.alias=x=y,z=w", "thinking=true",
        "log.file=my.log", "cache.memory_size=auto", "sampling.temperature=0.5",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    here = tmp_path / "cwd"
    assert tomllib.loads(config.read_text()) == {
        "cache": {"max_size": "50GB", "enabled": False, "memory_size": "auto"},
        "server": {"drain_timeout": "90s"},
        "models": {"dir": [f"{here}/a", "/b"], "alias": {"x": "y", "z": "w"}},
        "thinking": True,
        "log": {"file": f"{here}/my.log"},
        "sampling": {"temperature": 0.5},
    }
    shown = json.loads(cli("config", "show", "--json").out)["settings"]
    assert shown["cache.max_size"] == 50 * 10**9 and shown["server.drain_timeout"] == 90


def test_comments_and_modes_of_a_file_stay(cli: Cli, config: Path) -> None:
    write(config, HAND)
    config.chmod(0o640)
    assert cli("config", "set", "server.port=8002", "log.level=debug").code == 0
    assert cli("config", "set", "--model", "qwen*", "sampling.top_p=0.5").code == 0
    assert config.read_text() == (
        HAND.replace("8001", "8002").replace("# few\n", "# few\nsampling.top_p = 0.5\n")
        + '\n[log]\nlevel = "debug"\n'
    )
    assert stat.S_IMODE(config.stat().st_mode) == 0o640


def test_a_link_stays_one(cli: Cli, config: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(HAND)
    config.parent.mkdir(parents=True)
    config.symlink_to(real)
    assert cli("config", "set", "server.port", "8002").code == 0
    assert config.is_symlink() and "8002" in real.read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("server.prot", "1"), 2, "server.port"),
        (("port", "1"), 2, "server.port"),
        (("server.port", "x"), 2, "server.port: expected a whole number, got 'x'"),
        (("server.port", "99999"), 2, "not within 0 to 65535"),
        (("server.port=1", "log.level=loud"), 2, "log.level: expected one of debug"),
        (("server.port",), 2, "needs a value"),
        (("server.port=1", "server.port=2"), 2, "given twice"),
        (("--model", "a*", "server.port=1"), 2, "cannot be set for one model"),
        (("server.api_key=",), 2, "empty"),
    ],
)
def test_wrong_values_write_nothing(
    cli: Cli, config: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    write(config, HAND)
    outcome = cli("config", "set", *words)
    assert (outcome.code, outcome.out) == (code, "") and said in outcome.err
    assert config.read_text() == HAND
    assert [path.name for path in config.parent.iterdir()] == ["config.toml"]


def test_every_wrong_value_is_named(cli: Cli) -> None:
    outcome = cli("config", "set", "server.port=x", "log.level=y", "cache.max_size=z")
    assert outcome.err.count("error: ") == 3


def test_a_file_that_is_no_toml_is_left(cli: Cli, config: Path) -> None:
    write(config, "[server\n")
    outcome = cli("config", "set", "server.port", "1")
    assert outcome.code == 2 and "omlx config edit" in outcome.err
    assert config.read_text() == "[server\n"


def test_an_old_fault_does_not_hinder_and_is_told(cli: Cli, config: Path) -> None:
    write(config, "[server]\nprot = 1\n")
    outcome = cli("config", "set", "server.port", "8002")
    assert outcome.code == 0 and "still wrong" in outcome.err and "prot" in outcome.err
    assert cli("config", "unset", "server.prot").code == 0
    assert config.read_text() == "[server]\nport = 8002\n"


def test_a_file_that_can_not_be_written(cli: Cli, config: Path) -> None:
    write(config, HAND)
    config.unlink()
    config.mkdir()
    outcome = cli("config", "set", "server.port", "1")
    assert outcome.code == 1 and f"{config} cannot be read" in outcome.err


def test_the_project_file(cli: Cli, config: Path) -> None:
    assert cli("config", "set", "--project", "server.port", "8123").code == 0
    assert tomllib.loads(Path("omlx.toml").read_text()) == {"server": {"port": 8123}}
    assert not config.exists()
    outcome = cli("config", "set", "server.port", "8124")
    assert "server.port is written, and has another value here: file omlx.toml:" in outcome.err


def test_what_a_variable_overrules_is_told(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_SERVER_PORT", "9")
    outcome = cli("config", "set", "server.port", "8124")
    assert outcome.code == 0 and "env OMLX_SERVER_PORT sets it" in outcome.err


# ---- addresses that others can reach


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_an_open_address_needs_a_key(cli: Cli, config: Path, host: str) -> None:
    outcome = cli("config", "set", "server.host", host)
    assert outcome.code == 1 and not config.exists()
    assert "needs an API key" in outcome.err and "omlx key create" in outcome.err
    assert cli("config", "set", f"server.host={host}", "server.api_key=hush-hush").code == 0
    assert tomllib.loads(config.read_text())["server"]["host"] == host
    outcome = cli("config", "unset", "server.api_key")  # would open it again
    assert outcome.code == 1 and "hush-hush" in config.read_text()


def test_a_key_of_the_file_of_keys_is_enough(cli: Cli, config: Path) -> None:
    cli("key", "create", "ann")
    assert cli("config", "set", "server.host", "0.0.0.0").code == 0


def test_a_key_of_the_users_file_is_enough_for_a_project(cli: Cli) -> None:
    cli("config", "set", "server.api_key", "hush-hush")
    assert cli("config", "set", "--project", "server.host", "0.0.0.0").code == 0


def test_loopback_needs_none(cli: Cli) -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert cli("config", "set", "server.host", host).code == 0


def test_other_settings_of_an_open_file_are_not_held_up(cli: Cli, config: Path) -> None:
    write(config, "[server]\nhost = '0.0.0.0'  # the key is in the environment\n")
    assert cli("config", "set", "server.port", "8124").code == 0


# ---- secrets


def test_a_secret_is_read_from_stdin_and_never_shown(
    cli: Cli, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("hush-hush\n"))
    outcome = cli("config", "set", "server.api_key")
    assert (outcome.code, outcome.err) == (0, "")
    assert tomllib.loads(config.read_text())["server"]["api_key"] == "hush-hush"
    shown = cli("config", "get", "server.api_key")
    assert shown.out == "********\n"
    config.chmod(0o644)
    outcome = cli("config", "set", "server.metrics_key=hush-two")
    assert "chmod 600" in outcome.err and "hush" not in outcome.err


# ---- unset


def test_unset_leaves_the_rest(cli: Cli, config: Path) -> None:
    write(config, HAND)
    assert cli("config", "unset", "server.port").code == 0
    assert cli("config", "unset", "--model", "qwen*", "sampling.top_k").code == 0
    assert tomllib.loads(config.read_text()) == {"server": {}, "model": {"qwen*": {}}}
    assert config.read_text().startswith("# My machine\n[server]  # the web\n")


def test_unset_of_a_file_of_ours_leaves_no_empty_tables(cli: Cli, config: Path) -> None:
    cli("config", "set", "server.port=1", "log.level=debug")
    cli("config", "unset", "server.port")
    assert config.read_text() == HEAD + '[log]\nlevel = "debug"\n'


def test_unset_of_what_is_not_there(cli: Cli, config: Path) -> None:
    outcome = cli("config", "unset", "server.port")
    assert outcome.code == 0 and "is not set in" in outcome.err and not config.exists()
    assert cli("config", "unset", "server.prot").code == 2


# ---- get and path


def test_get_says_who_set_it(cli: Cli, config: Path) -> None:
    write(config, HAND)
    assert cli("config", "get", "server.port").out == "8001\n"
    shown = cli("config", "get", "server.port", "--origin").out
    assert shown.split() == ["server.port", "8001", "file", f"{config}:3"]
    told = json.loads(cli("config", "get", "server.port", "--json").out)["settings"]
    assert told["server.port"]["origin"] == {"kind": "file", "where": f"{config}:3"}
    table = cli("config", "get", "log").out.splitlines()
    assert [line.split()[0] for line in table] == [
        "log.level",
        "log.file",
        "log.max_size",
        "log.keep",
    ]
    model = cli("config", "get", "sampling.top_k", "--model", "qwen3")
    assert model.out == "5\n"


def test_get_of_what_is_not_there(cli: Cli) -> None:
    outcome = cli("config", "get", "server.prot")
    assert outcome.code == 2 and "server.port" in outcome.err
    assert cli("config", "get", "server.port", "--model", "a").code == 2


def test_path(cli: Cli, config: Path, tmp_path: Path) -> None:
    assert cli("config", "path").out == f"{config}\n"
    both = cli("config", "path", "--all").out.splitlines()
    assert both == [str(tmp_path / "cwd" / "omlx.toml"), str(config)]
    assert json.loads(cli("config", "path", "--json").out)["files"][1] == {
        "path": str(config), "exists": False,
    }  # fmt: skip


# ---- edit


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An editor that writes what it is told; its name has a blank in it, as names do."""
    script = tmp_path / "my editor.sh"
    script.write_text('#!/bin/sh\ncat "$EDIT_TEXT" > "$2"\nexit "${EDIT_CODE:-0}"\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", f"'{script}' --wait")
    text = tmp_path / "text"
    monkeypatch.setenv("EDIT_TEXT", str(text))
    return text


def test_edit_takes_what_is_right(cli: Cli, config: Path, editor: Path) -> None:
    editor.write_text("[server]\nport = 5\n# mine\n")
    outcome = cli("config", "edit")
    assert outcome.code == 0 and str(config) in outcome.err
    assert config.read_text() == editor.read_text()
    assert "nothing was changed" in cli("config", "edit").err


def test_edit_keeps_what_is_wrong_beside(cli: Cli, config: Path, editor: Path) -> None:
    write(config, HAND)
    editor.write_text("[server]\nport = 'x'\n")
    outcome = cli("config", "edit")
    assert outcome.code == 2 and "server.port" in outcome.err
    assert config.read_text() == HAND
    kept = outcome.err.rpartition(" is in ")[2].strip()
    assert Path(kept).read_text() == editor.read_text()


def test_edit_does_not_open_the_server(cli: Cli, config: Path, editor: Path) -> None:
    editor.write_text("[server]\nhost = '0.0.0.0'\n")
    outcome = cli("config", "edit")
    assert outcome.code == 1 and "needs an API key" in outcome.err and not config.exists()


def test_an_editor_that_fails(
    cli: Cli, config: Path, editor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor.write_text("[server]\nport = 5\n")
    monkeypatch.setenv("EDIT_CODE", "1")
    assert cli("config", "edit").code == 1 and not config.exists()
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    outcome = cli("config", "edit")
    assert outcome.code == 1 and "/no/such/editor can't be started" in outcome.err


# ---- the file

NAMES = st.text("abcdefgh_-.\"' é", min_size=1, max_size=5)
VALUES = st.one_of(st.integers(-5, 5), st.booleans(), st.text(max_size=5))


@given(
    st.dictionaries(
        NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=4
    ),
    st.lists(st.tuples(NAMES, NAMES), max_size=2),
    VALUES,
)
def test_a_changed_text_says_the_old_and_the_new(
    data: dict[str, object], place: list[tuple[str, str]], value: object
) -> None:
    import tomli_w

    text = "# somebody's\n" + tomli_w.dumps(data)
    for table, name in place:
        try:
            text = changed(text, {(table, name): value})
        except (SettingsError, OmlxError):
            assert not isinstance(data.get(table, {}), dict)
            return
        assert tomllib.loads(text)[table][name] == value
        assert text.startswith("# somebody's\n")
        assert set(data) <= set(tomllib.loads(text))
