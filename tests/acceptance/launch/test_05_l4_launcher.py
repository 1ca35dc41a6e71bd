"""Point 5, the case L4: a launcher passes the usable window on, and turns the attribution off.

Point 5, the case L1: it finds a server that runs on another port than the settings say.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import models
from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY, Live, command

WINDOW, TARGET = 131072, 100_000
VERSIONS = {"claude": "2.1.400", "codex": "0.171.0", "copilot": "1.0.102", "vibe": "3.0.2"}


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """Clients that write down what they are started with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, version in VERSIONS.items():
        path = folder / name
        path.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo {version}; exit 0; fi\n'
            f'env > {tmp_path}/{name}.env\nprintf "%s\\n" "$@" > {tmp_path}/{name}.args\nexit 3\n'
        )
        path.chmod(0o755)
    return folder


def launch(client: str, home: Path, bin_dir: Path, *args: str) -> subprocess.CompletedProcess[str]:
    path = f"{bin_dir}:{os.environ['PATH']}"
    env = {**os.environ, "OMLX_HOME": str(home), "PATH": path, "HOME": str(home)}
    return subprocess.run(
        command("launch", client, *args),
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def seen(tmp_path: Path, name: str) -> tuple[Mapping[str, str], list[str]]:
    """The variables and arguments that a client was started with."""
    lines = (tmp_path / f"{name}.env").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    return env, (tmp_path / f"{name}.args").read_text().splitlines()


def test_l4_the_usable_window_and_no_attribution(
    tmp_path: Path, bin_dir: Path, figure: Figure
) -> None:
    """The model sees 131,072 tokens, the server gives it 100,000: that is what clients are told."""
    folder = models.tiny_served_model(tmp_path / "models", window=WINDOW)
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f"context_window = {TARGET}\n")
    with Live("--model-dir", str(folder), home=home) as live:
        base = f"http://127.0.0.1:{live.port}"
        for client in ("claude-code", "codex", "copilot", "vibe"):
            done = launch(client, home, bin_dir)
            assert done.returncode == 3, done.stderr
        env, _ = seen(tmp_path, "claude")
        assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(TARGET)
        assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
        assert env["ANTHROPIC_BASE_URL"] == base
        _, args = seen(tmp_path, "codex")
        assert f"model_context_window={TARGET}" in args
        (limit,) = [arg for arg in args if arg.startswith("model_auto_compact_token_limit=")]
        assert 0.7 * TARGET < int(limit.split("=")[1]) < 0.9 * TARGET
        env, _ = seen(tmp_path, "copilot")
        prompt = int(env["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"])
        assert prompt + int(env["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"]) == TARGET
        env, _ = seen(tmp_path, "vibe")
        assert f'"auto_compact_threshold":{int(limit.split("=")[1])}' in env["VIBE_MODELS"]
        assert str(WINDOW) not in "".join(env.values())
        assert live.model_status()["state"] == "ready", "it was loaded before the client started"
    figure(
        f"L4: model {WINDOW}, server {TARGET}: claude, codex and copilot are told {TARGET}, codex "
        f"and vibe sum up at {limit.split('=')[1]}, attribution off"
    )


def test_l4_a_client_that_cannot_fit_is_not_started(
    tmp_path: Path, bin_dir: Path, demo: Path, figure: Figure
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = launch(
        "claude-code", home, bin_dir, "--model-dir", str(demo.parent), "--model", demo.name
    )
    assert done.returncode == 1 and "that of SmolLM2-135M-Instruct is 8,192" in done.stderr
    assert not (tmp_path / "claude.env").exists()
    assert not list((home / "state").glob("server-*.json")), "no server was started for nothing"
    figure(f"L4: {done.stderr.splitlines()[0].removeprefix('error: ')}")


def test_l1_a_server_is_started_and_found_again_on_its_port(
    tmp_path: Path, bin_dir: Path, figure: Figure
) -> None:
    """The first launch starts it on a free port, the second finds it though the settings differ."""
    shutil.copytree(models.tiny_served_model(tmp_path / "m", window=WINDOW), tmp_path / "one" / "t")
    home, port = tmp_path / "home", "8437"
    home.mkdir()
    args = ("--model-dir", str(tmp_path / "one"), "--port", port)
    try:
        first = launch("claude-code", home, bin_dir, *args)
        assert first.returncode == 3, first.stderr
        assert f"omlx stop --port {port} ends it" in first.stderr
        (tmp_path / "claude.env").unlink()
        second = launch("claude-code", home, bin_dir)
        assert second.returncode == 3, second.stderr
        assert "started in the background" not in second.stderr
        env, _ = seen(tmp_path, "claude")
        assert env["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{port}"
    finally:
        stopped = subprocess.run(
            command("stop", "--port", port),
            cwd=REPOSITORY,
            env={**os.environ, "OMLX_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert stopped.returncode == 0, stopped.stderr
    figure(f"L1: a server started on port {port} by one launch is found by the next one")
