"""`omlx bench verify` and `omlx bench agent`: the real binary, and the servers that it starts."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from omlx.bench.tooled import with_tool_template
from omlx.bench.verify import CONCURRENT, NAMES, RESTART, SAME, TOOLS
from omlx.models.demo import DEMO_ID
from tests import models
from tests.live import REPOSITORY, Live, command, run_omlx, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
TRACES = REPOSITORY / "tests" / "data" / "traces"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model whose template prints tools."""
    folder = tmp_path_factory.mktemp("models")
    return with_tool_template(models.tiny_served_model(folder / "plain"), folder / "tooled")


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON document on the last line."""
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    return json.loads(lines[-1])


def passed(found: Any) -> dict[str, bool | None]:
    return {check["name"]: check["passed"] for check in found["checks"]}


def left_behind(home: str) -> list[int]:
    """Processes of servers that have this folder in their environment."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if home in process.environ().get("OMLX_HOME", ""):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_the_demo_models_four_checks(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / DEMO_ID).symlink_to(models.demo_model())
    done = run_omlx("bench", "verify", "--demo", "--json", home=home, timeout_s=280)
    found = document(done)
    assert done.returncode == 0, done.stderr + done.stdout
    assert passed(found) == dict.fromkeys(NAMES, True), found
    figures = {check["name"]: check["figures"] for check in found["checks"]}
    for name in (SAME, RESTART, TOOLS):
        assert figures[name]["uncached_tokens"] == 1
        assert figures[name]["prompt_tokens"] > 2 * 256
    assert figures[SAME]["first_uncached_tokens"] == figures[SAME]["prompt_tokens"]
    assert figures[RESTART]["disk_tokens"] == figures[RESTART]["prompt_tokens"] - 1
    tools = figures[TOOLS]
    assert tools["off_uncached_tokens"] > 100
    assert tools["off_lost_part"] == 'tool 0 "list_folder"'
    assert tools["off_change"] == "order changed"
    lost = tools["off_prompt_tokens"] - tools["off_uncached_tokens"]
    assert (tools["off_lost_token"], tools["off_lost_block"]) == (lost, lost // 256)
    assert figures[CONCURRENT]["uncached_tokens"] < figures[CONCURRENT]["prompt_tokens"] / 3
    assert found["kind"] == "verify" and found["machine"]["cores"]


def test_a_server_without_its_cache_fails(tiny_model: Path, tmp_path: Path) -> None:
    with Live("--model-dir", str(tiny_model), "--no-cache", home=tmp_path) as live:
        url = f"http://127.0.0.1:{live.port}"
        done = run_omlx("bench", "verify", "--url", url, "--json", home=tmp_path)
    assert done.returncode == 1
    found = document(done)
    assert passed(found) == {SAME: False, RESTART: None, TOOLS: False, CONCURRENT: False}
    assert "the prefix cache does not do what it should: same request twice" in done.stderr
    assert all(check["reason"] for check in found["checks"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@pytest.fixture
def background(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The home and the port of a server in the background whose prompts are left as they are."""
    home, port = tmp_path / "home", free_port()
    options = ("--no-tool-order", "--cache-load", "always", "--cache-min-free", "0")
    args = ("--model-dir", str(tiny_model), "--port", str(port), *options)
    done = run_omlx("start", *args, home=home)
    assert done.returncode == 0, done.stderr
    yield home, port
    run_omlx("stop", "--all", home=home)


def test_a_running_server_is_restarted_by_a_command(background: tuple[Path, int]) -> None:
    home, port = background
    url = f"http://127.0.0.1:{port}/v1"
    restart = f"{sys.executable} -m omlx restart --port {port}"
    args = ("bench", "verify", "--url", url, "--restart-command", restart)
    done = run_omlx(*args, "--json", home=home, timeout_s=200)
    found = document(done)
    assert done.returncode == 0, done.stderr + done.stdout
    assert passed(found) == dict.fromkeys(NAMES, True), found
    tools = {check["name"]: check for check in found["checks"]}[TOOLS]
    assert tools["figures"]["lost_part"] == 'tool 0 "list_folder"'
    assert "the stable form of prompts is off" in tools["reason"]
    nothing = run_omlx("bench", "verify", "--url", url, "--seed", "8",
                       "--restart-command", "true", home=home)  # fmt: skip
    assert nothing.returncode == 1
    assert "was not restarted" in " ".join(nothing.stdout.split())


def test_an_interrupted_bench_leaves_no_server(tiny_model: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "OMLX_HOME": str(tmp_path / "home"), "TMPDIR": str(scratch)}
    args = ("bench", "verify", "--model", str(tiny_model))
    process = subprocess.Popen(
        command(*args), cwd=REPOSITORY, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: left_behind(str(scratch)), timeout_s=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert left_behind(str(scratch)) == []
    assert [*scratch.iterdir()] == []


def test_agents_on_a_server_of_their_own(tiny_model: Path, tmp_path: Path) -> None:
    files = [str(TRACES / f"agent-{number}.json") for number in ("01", "22")]
    args = ("--model", str(tiny_model), "--agents", "3", "--turns", "4", "--max-tokens", "4")
    done = run_omlx("bench", "agent", *files, *args, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    found = document(done)
    rows = found["rows"]
    assert len(rows) == 12
    assert {row["prefix"] for row in rows if row["turn"] == 1} == {"miss"}
    for row in rows:
        assert row["uncached"] - row["new"] <= 8 * (2 * row["turn"] + 2), row
        assert row["memory"] + row["disk"] == row["prompt"] - row["uncached"]
    assert any(row["uncached"] < row["prompt"] / 5 for row in rows)
    (written,) = [one for one in found["measures"] if one["name"] == "written"]
    assert written["samples"][0] > 0


def test_agents_see_a_cache_that_is_off(tiny_model: Path, tmp_path: Path) -> None:
    with Live("--model-dir", str(tiny_model), "--no-cache", home=tmp_path) as live:
        args = ("--url", f"http://127.0.0.1:{live.port}", "--turns", "3", "--max-tokens", "2")
        trace = str(TRACES / "agent-22.json")
        done = run_omlx("bench", "agent", trace, *args, "--scale", "0.02", "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = document(done)["rows"]
    assert [row["uncached"] for row in rows] == [row["prompt"] for row in rows]
    assert {row["prefix"] for row in rows} == {"miss"}


def test_a_bad_trace_is_named_before_anything_starts(tmp_path: Path, tiny_model: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"block_size": 64, "requests": [{"t": 0, "in": "many", "out": 1}]}')
    done = run_omlx("bench", "agent", str(bad), "--model", str(tiny_model), home=tmp_path)
    assert done.returncode == 1
    assert f'error: {bad}: requests[0].in is "many", but must be a whole number' in done.stderr
    assert "hint: docs/guide/bench-agents.md" in done.stderr
