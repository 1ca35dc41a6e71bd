"""`omlx serve` up to where the server begins, with a server that only says it is ready."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import omlx.server.run
from omlx.cli.serve import curl
from omlx.client import Launched
from omlx.errors import ServerError
from omlx.models.locate import Discovery
from omlx.server.desk import Desk
from omlx.settings.build import Resolved
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_model import add_model

ADDRESS = "http://127.0.0.1:8123"


class FakeServer:
    """Stands in for the server's entry point: is ready at once, and ends."""

    def __init__(self) -> None:
        self.resolved: Resolved | None = None
        self.launched: Launched | None = None
        self.ids: list[str] = []
        self.code = 0
        self.error: ServerError | None = None

    def __call__(
        self,
        resolved: Resolved,
        discovery: Discovery,
        *,
        on_ready: Callable[[str], None],
        snapshot_sink: Callable[[Callable[[], Mapping[str, object]]], None] | None = None,
        desk: Desk,
        launched: Launched | None = None,
    ) -> int:
        self.desk = desk
        self.resolved, self.launched = resolved, launched
        self.ids = [entry.id for entry in discovery.models]
        if self.error is not None:
            raise self.error
        if snapshot_sink is not None:
            snapshot_sink(lambda: {"requests": {"finished": 3}})
        on_ready(ADDRESS)
        return self.code


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    monkeypatch.setattr(omlx.server.run, "run_server", fake)
    return fake


def test_no_models_is_an_error_that_says_how_to_get_one(cli: Cli, home: Path) -> None:
    outcome = cli("serve")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"error: no models in {home}/models\nhint: ")
    assert "omlx model pull demo" in outcome.err
    assert "omlx serve --demo" in outcome.err


def test_it_says_where_it_is_and_what_to_try(cli: Cli, home: Path, server: FakeServer) -> None:
    add_model(home / "models" / "b")
    add_model(home / "models" / "a")
    outcome = cli("serve")
    assert (outcome.code, outcome.out) == (0, "")
    lines = outcome.err.splitlines()
    assert lines[0] == f"omlx serves at {ADDRESS}"
    assert lines[1] == "models: a, b"
    command = shlex.split("\n".join(lines[3:]))
    assert command[:2] == ["curl", f"{ADDRESS}/v1/chat/completions"]
    assert json.loads(command[-1])["model"] == "a"


def test_flags_reach_the_server(cli: Cli, tmp_path: Path, server: FakeServer) -> None:
    add_model(tmp_path / "x" / "one")
    add_model(tmp_path / "y" / "two")
    flags = ["--max-concurrent-requests", "3", "--no-cache", "--cache-max-size", "1GB"]
    folders = ["--model-dir", str(tmp_path / "x"), "--model-dir", str(tmp_path / "y")]
    assert cli("serve", *flags, *folders).code == 0
    assert server.ids == ["one", "two"]
    assert server.resolved is not None
    settings = server.resolved.settings
    assert settings.scheduler.max_concurrent_requests == 3
    assert settings.cache.enabled is False
    assert settings.cache.max_size == 10**9


def test_what_a_restart_needs_is_kept_but_no_key(
    cli: Cli, home: Path, server: FakeServer, tmp_path: Path
) -> None:
    add_model(home / "models" / "a")
    args = ["--port", "1", "--no-cache", "--api-key", "hush", "--dashboard"]
    assert cli("--profile", "16gb", "serve", *args).code == 0
    assert server.launched == Launched(
        ("--port=1", "--no-cache", "--profile=16gb"), tmp_path / "cwd", ("--api-key",)
    )


def test_a_log_that_cannot_be_written_is_an_error(
    cli: Cli, home: Path, server: FakeServer, tmp_path: Path
) -> None:
    """L5"""
    add_model(home / "models" / "a")
    (tmp_path / "file").write_text("")
    outcome = cli("serve", "--log-file", str(tmp_path / "file" / "a.log"))
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: the log {tmp_path}/file/a.log cannot be written: ")
    assert "--log-file" in outcome.err.partition("hint: ")[2]
    assert server.resolved is None


def test_exit_code_and_errors_of_the_server_are_those_of_the_command(
    cli: Cli, home: Path, server: FakeServer
) -> None:
    add_model(home / "models" / "a")
    server.code = 130
    assert cli("serve").code == 130
    server.error = ServerError("port 8000 is taken", hint="--port takes another")
    outcome = cli("serve", "--dashboard")
    assert outcome.code == 1
    assert outcome.err == "error: port 8000 is taken\nhint: --port takes another\n"


def test_the_dashboard_is_lines_on_stdout_where_that_is_no_terminal(
    cli: Cli, home: Path, server: FakeServer
) -> None:
    add_model(home / "models" / "a")
    outcome = cli("serve", "--dashboard")
    assert outcome.out.startswith("waiting 0, prefilling 0, decoding 0, done 3")
    assert outcome.err.startswith("omlx serves at")


def test_the_key_is_never_printed(
    cli: Cli, home: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(home / "models" / "a")
    assert "Authorization: Bearer YOUR_API_KEY" in cli("serve", "--api-key", "hush").err
    monkeypatch.setenv("OMLX_SERVER_API_KEY", "hush")
    outcome = cli("serve")
    assert "Authorization: Bearer $OMLX_SERVER_API_KEY" in outcome.err
    assert "hush" not in outcome.err


def test_the_call_to_try_survives_odd_names() -> None:
    command = shlex.split(curl(ADDRESS, 'it\'s a "model"', key=None))
    assert json.loads(command[-1])["model"] == 'it\'s a "model"'
