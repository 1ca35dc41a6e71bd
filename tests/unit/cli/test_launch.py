"""`omlx launch`: what is started with what, and what is said where nothing is."""

import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from omlx.cli.agents import executable
from omlx.cli.view.pick import pick
from omlx.launch.catalog import read_catalog
from omlx.launch.detect import detect
from tests.fakes.http import JsonServer
from tests.fakes.model_folder import write_model_folder
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_resident import leave_state

KEY = "omlx-very-secret"


def answers(**windows: int | None) -> Mapping[str, object]:
    data = [{"id": name, "context_window": window} for name, window in windows.items()]
    loads = {f"/v1/models/{name}/load": {"id": name, "state": "ready"} for name in windows}
    return {"/health": {"status": "ready"}, "/v1/models": {"data": data}, **loads}


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of programs, first on PATH, and a home of the user's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    for name in [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE", "CODEX"))]:
        monkeypatch.delenv(name)
    return folder


def put(folder: Path, name: str, version: str, body: str = "exit 0") -> None:
    path = folder / name
    check = f'if [ "$1" = --version ]; then echo {version}; exit 0; fi'
    path.write_text(f"#!/bin/sh\n{check}\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def server(home: Path) -> Iterator[JsonServer]:
    """A server that has the model coder with 131,072 tokens."""
    with JsonServer(answers(coder=131072)) as fake:
        leave_state(home, fake)
        yield fake


def test_the_client_gets_the_model_that_was_loaded(
    cli: Cli, home: Path, bin_dir: Path, server: JsonServer, tmp_path: Path
) -> None:
    body = f'env > {tmp_path}/env; printf "%s|" "$@" > {tmp_path}/args; exit 7'
    put(bin_dir, "claude", "2.1.400", body)
    outcome = cli("launch", "claude-code", "--", "-p", "two words", "--model", "x")
    assert (outcome.code, outcome.out, outcome.err) == (7, "", "loading coder ...\n")
    assert server.posted == ["/v1/models/coder/load"]
    assert (tmp_path / "args").read_text() == "-p|two words|--model|x|"
    env = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert env["ANTHROPIC_BASE_URL"] == server.address
    assert env["ANTHROPIC_MODEL"] == env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "coder"
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert list((home / "state" / "launch" / "run").iterdir()) == []


def test_files_are_there_while_the_client_runs_and_gone_after_it(
    cli: Cli, home: Path, bin_dir: Path, server: JsonServer, tmp_path: Path
) -> None:
    put(bin_dir, "pi", "1.6.0", f'cp "$2" {tmp_path}/seen; ls -ld $(dirname "$2") > {tmp_path}/ls')
    assert cli("launch", "pi").code == 0
    assert server.address in (tmp_path / "seen").read_text()
    assert (tmp_path / "ls").read_text().startswith("drwx------")
    assert list((home / "state" / "launch" / "run").iterdir()) == []


def test_a_server_that_loads_a_model_is_used(cli: Cli, bin_dir: Path, server: JsonServer) -> None:
    """Its health is said with 503 until then."""
    put(bin_dir, "pi", "1.6.0")
    server.statuses["/health"] = 503
    outcome = cli("launch", "pi")
    assert (outcome.code, server.posted) == (0, ["/v1/models/coder/load"])


def test_a_server_that_stops_is_not_used(cli: Cli, bin_dir: Path, server: JsonServer) -> None:
    put(bin_dir, "pi", "1.6.0")
    server.answers = {**server.answers, "/health": {"status": "stopping"}}
    outcome = cli("launch", "pi")
    assert outcome.code == 1 and "no models in" in outcome.err


def test_both_models_are_loaded(cli: Cli, home: Path, bin_dir: Path) -> None:
    put(bin_dir, "codex", "0.171.0")
    with JsonServer(answers(big=131072, small=32768)) as fake:
        leave_state(home, fake)
        outcome = cli("launch", "codex", "--model", "big", "--small-model", "small")
        assert outcome.code == 0
        assert fake.posted == ["/v1/models/big/load", "/v1/models/small/load"]


def test_the_key_goes_to_the_client_and_is_shown_nowhere(
    cli: Cli, home: Path, bin_dir: Path, server: JsonServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    put(
        bin_dir,
        "codex",
        "0.171.0",
        f'echo "$LOCAL_KEY" > {tmp_path}/key; echo "$@" > {tmp_path}/args',
    )
    server.api_key = KEY
    monkeypatch.setenv("OMLX_SERVER_API_KEY", KEY)
    assert cli("launch", "codex").code == 0
    assert (tmp_path / "key").read_text() == f"{KEY}\n"
    assert KEY not in (tmp_path / "args").read_text()
    for name in ("codex", "cline", "continue", "claude-code", "zed"):
        shown = cli("launch", name, "--print")
        assert shown.code == 0 and "YOUR_API_KEY" in shown.out and KEY not in shown.out + shown.err
    written = cli("launch", "codex", "--write")
    assert written.code == 0 and "LOCAL_KEY has to hold the server's key" in written.err
    kept = (tmp_path / "user" / ".codex" / "config.toml").read_text()
    assert KEY not in kept + written.out and 'env_key = "LOCAL_KEY"' in kept


def test_what_does_not_fit_is_said_with_what_does(cli: Cli, home: Path, bin_dir: Path) -> None:
    put(bin_dir, "claude", "2.1.400")
    with JsonServer(answers(demo=8192)) as fake:
        leave_state(home, fake)
        outcome = cli("launch", "claude-code")
        assert (outcome.code, fake.posted) == (1, [])
    assert "needs a window of 13,000 tokens or more" in outcome.err
    assert "that of demo is 8,192" in outcome.err
    assert "clients that fit this model: aider, pi, continue, cline;" in outcome.err


def test_what_leaves_little_is_warned_of(cli: Cli, home: Path, bin_dir: Path) -> None:
    put(bin_dir, "claude", "2.1.400")
    with JsonServer(answers(demo=16384)) as fake:
        leave_state(home, fake)
        outcome = cli("launch", "claude-code")
    assert outcome.code == 0
    assert "warning: Claude Code takes about 12,500 tokens before the first word" in outcome.err


@pytest.mark.parametrize("window", [None, 0])
def test_a_window_that_nobody_knows_is_an_error(
    window: int | None, cli: Cli, home: Path, bin_dir: Path
) -> None:
    put(bin_dir, "pi", "1.6.0")
    with JsonServer(answers(odd=window)) as fake:
        leave_state(home, fake)
        outcome = cli("launch", "pi")
    assert outcome.code == 1 and "nothing says how large the window of odd is" in outcome.err


def test_the_only_model_that_fits_is_taken(cli: Cli, home: Path, bin_dir: Path) -> None:
    put(bin_dir, "claude", "2.1.400")
    with JsonServer(answers(demo=8192, coder=131072)) as fake:
        leave_state(home, fake)
        assert cli("launch", "claude-code").code == 0
        assert fake.posted == ["/v1/models/coder/load"]


def test_several_models_and_nobody_to_ask(cli: Cli, home: Path, bin_dir: Path) -> None:
    put(bin_dir, "pi", "1.6.0")
    with JsonServer(answers(one=8192, two=131072)) as fake:
        leave_state(home, fake)
        outcome = cli("launch", "pi")
        assert (outcome.code, fake.posted) == (2, [])
        assert outcome.err.endswith("hint: --model takes one of one, two\n")
        outcome = cli("launch", "pi", "--model", "tow")
        assert outcome.code == 1 and "there is no model 'tow' (did you mean 'two'?)" in outcome.err


def test_the_picker_asks_until_it_gets_one_of_the_lines() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=60)
    assert pick(["one [b]", "two"], console=console, answers=io.StringIO("7\nx\n2\n")) == 1
    assert "  1  one [b]\n  2  two\n" in shown.getvalue()
    assert pick(["one", "two"], console=console, answers=io.StringIO("\n")) == 0


@pytest.mark.parametrize(
    ("version", "problem"),
    [(None, "is not installed"), ("2.1.197", "is too old"), ("none", "does not work")],
)
def test_a_client_that_is_not_ready_is_not_started(
    version: str | None, problem: str, cli: Cli, bin_dir: Path, server: JsonServer
) -> None:
    if version is not None:
        put(bin_dir, "claude", version, "exit 5")
    outcome = cli("launch", "claude-code")
    assert (outcome.code, server.posted) == (1, [])
    assert (
        problem in outcome.err and "npm install -g @anthropic-ai/claude-code@latest" in outcome.err
    )
    forced = cli("launch", "claude-code", "--force")
    assert forced.code == (1 if version is None else 5)


def test_one_that_is_slow_to_say_its_version_is_started_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A busy machine is no reason to refuse."""
    client = read_catalog(Path(__file__).parents[3] / "profiles" / "clients")["pi"]
    path = tmp_path / client.executables[0]
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert executable(client, detect(client, env, timeout_s=0.2), force=False) == path
    assert "may be too old" in capsys.readouterr().err


def test_print_changes_nothing_and_loads_nothing(
    cli: Cli, home: Path, bin_dir: Path, server: JsonServer
) -> None:
    before = sorted(home.rglob("*"))
    for name in ("claude-code", "hermes", "cline", "zed", "cursor"):
        assert cli("launch", name, "--print").code == 0
    assert sorted(home.rglob("*")) == before and server.posted == []


def test_print_without_a_server_takes_the_models_on_the_disk(
    cli: Cli, home: Path, bin_dir: Path, tmp_path: Path
) -> None:
    write_model_folder(tmp_path / "models", "mine")
    args = ("--print", "--model-dir", str(tmp_path / "models"), "--port", "8123")
    outcome = cli("launch", "aider", *args)
    assert outcome.code == 0
    assert "http://127.0.0.1:8123/v1" in outcome.out and '"max_input_tokens": 4096' in outcome.out
    outcome = cli("launch", "codex", *args)
    assert outcome.code == 1 and "that of mine is 4,096" in outcome.err
    outcome = cli("launch", "aider", "--print")
    assert outcome.code == 1 and "no models in" in outcome.err


def test_a_port_that_was_typed_is_meant(
    cli: Cli, home: Path, bin_dir: Path, server: JsonServer
) -> None:
    assert server.address in cli("launch", "pi", "--print", "--port", str(server.port)).out
    outcome = cli("launch", "pi", "--print", "--port", "1")
    assert outcome.code == 1 and "no models in" in outcome.err


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["claud"], "unknown client 'claud' (did you mean 'claude-code'?)"),
        (["claude"], "unknown client 'claude' (did you mean 'claude-code'?)"),
        (["pi", "--print", "--write"], "--print and --write do not go together"),
        (["pi", "--write", "--restore"], "--write and --restore do not go together"),
        (["pi", "--json"], "--json goes with omlx launch list only"),
        (["list", "pi"], "unexpected argument 'pi' after list"),
        (["list", "--print"], "--print needs the name of a client"),
        (["copilot", "--write"], "there is no file to write for Copilot CLI"),
    ],
)
def test_wrong_calls(
    args: list[str], problem: str, cli: Cli, home: Path, bin_dir: Path, server: JsonServer
) -> None:
    outcome = cli("launch", *args)
    assert outcome.code == 2 and problem in outcome.err


def test_the_list(cli: Cli, home: Path, bin_dir: Path) -> None:
    put(bin_dir, "claude", "2.1.400")
    put(bin_dir, "codex", "0.1.0")
    put(bin_dir, "pi", "rubbish")
    text = cli("launch", "list")
    assert text.code == 0
    lines = {line.split()[0]: line for line in text.out.splitlines() if line}
    assert f"{bin_dir}/claude" in lines["claude-code"] and " ready " in lines["claude-code"]
    assert " too old " in lines["codex"] and "npm install -g @openai/codex@latest" in lines["codex"]
    assert " broken " in lines["pi"] and " not found " in lines["aider"]
    shown = json.loads(cli("launch", "list", "--json").out)
    found = {one["name"]: one for one in shown["clients"]}
    assert len(found) == 13 and [one["name"] for one in shown["editors"]][0] == "cursor"
    assert found["codex"]["version"] == "0.1.0" and found["codex"]["least_version"] == "0.171.0"
    assert found["claude-code"]["endpoint"] == "messages" and found["claude-code"]["is_installed"]
    assert found["aider"]["path"] is None and found["aider"]["install"].startswith("pip install")


def test_write_and_restore_say_what_they_do(
    cli: Cli, home: Path, bin_dir: Path, server: JsonServer, tmp_path: Path
) -> None:
    path = tmp_path / "user" / ".pi" / "agent" / "models.json"
    outcome = cli("launch", "pi", "--write")
    assert outcome.code == 0 and f"wrote {path}" in outcome.err
    assert f"+++ {path}" in outcome.out and path.exists()
    assert "is set up so already" in cli("launch", "pi", "--write").err
    outcome = cli("launch", "pi", "--restore")
    assert outcome.out.splitlines()[0] == f"restored {path}" and not path.exists()
    assert cli("launch", "pi", "--restore").code == 1
