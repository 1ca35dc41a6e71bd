"""The real binary on a tiny random model: starts, answers, stops with exit code 0."""

import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import models
from tests.live import Live, chat, run_omlx

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_stops_beside_an_idle_connection_and_a_running_stream(
    tiny_model: Path, tmp_path: Path, sig: int
) -> None:
    live = Live(
        "--model-dir", str(tiny_model.parent), "--drain-timeout", "2s", home=tmp_path / "home"
    )
    idle = http.client.HTTPConnection("127.0.0.1", live.port)
    idle.request("GET", "/health")
    idle.getresponse().read()
    stream = live.stream("/v1/chat/completions", chat("tiny", "go on", max_tokens=100_000))
    next(stream)
    started = time.monotonic()
    code = live.stop(sig)
    assert code == 0, "".join(live.lines)
    assert time.monotonic() - started < 2 + 4
    stream.close()
    idle.close()


def test_a_second_server_on_the_port_says_so(tiny_model: Path, tmp_path: Path) -> None:
    with Live("--model-dir", str(tiny_model.parent), home=tmp_path / "a") as live:
        args = ("serve", "--model-dir", str(tiny_model.parent), "--port", str(live.port))
        second = run_omlx(*args, home=tmp_path / "b")
        assert second.returncode == 1
        assert str(live.port) in second.stderr and "Traceback" not in second.stderr


def test_no_models_names_the_command(tmp_path: Path) -> None:
    done = run_omlx("serve", home=tmp_path)
    assert done.returncode == 1
    assert "omlx model pull demo" in done.stderr


def test_a_hit_survives_stop_and_kill(tiny_model: Path, tmp_path: Path) -> None:
    text = "one two three four five six seven eight nine ten " * 60
    args = ("--model-dir", str(tiny_model.parent), "--cache-write-delay", "200ms")

    def ask(live: Live) -> tuple[int, int]:
        status, body = live.post("/v1/chat/completions", chat("tiny", text))
        assert status == 200, body
        usage = body["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    with Live(*args, home=tmp_path) as live:
        size, cached = ask(live)
        assert cached == 0
        assert ask(live) == (size, size - 1)
    with Live(*args, home=tmp_path) as live:
        assert ask(live) == (size, size - 1)
        live.kill()
    with Live(*args, home=tmp_path) as live:
        assert ask(live) == (size, size - 1)


def test_the_engine_ends_with_its_server(tiny_model: Path, tmp_path: Path) -> None:
    import psutil

    live = Live("--model-dir", str(tiny_model.parent), home=tmp_path)
    assert live.post("/v1/chat/completions", chat("tiny", "Hello"))[0] == 200
    children = psutil.Process(live.process.pid).children(recursive=True)
    assert children
    live.kill()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["model", "list"], ["config", "show"], ["cache", "inspect"]]
)
def test_commands_exit_with_0(args: list[str], tmp_path: Path) -> None:
    done = run_omlx(*args, home=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_installed_command_is_the_same(tmp_path: Path) -> None:
    binary = Path(sys.executable).parent / "omlx"
    done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, cwd=tmp_path)
    again = run_omlx("--version", home=tmp_path)
    assert done.returncode == 0 and done.stdout == again.stdout
