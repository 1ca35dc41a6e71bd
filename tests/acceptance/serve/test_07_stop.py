"""Point 7: SIGTERM with an idle keep-alive connection and a running stream: exit code 0 within the
drain limit, on each Python; and exit code 0 of every command."""

import http.client
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY, Live, chat, run_omlx


def pythons() -> list[str]:
    """The test environments that scripts/test makes, one for each Python version found here."""
    others = sorted((REPOSITORY / ".venvs").glob("3.*/bin/python"))
    return [sys.executable, *(str(p) for p in others)]


def version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def test_three_pythons_are_tested() -> None:
    assert {version(p) for p in pythons()} == {"3.11", "3.12", "3.13"}


@pytest.mark.parametrize("python", pythons(), ids=version)
def test_sigterm(python: str, tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    live = Live(
        "--model-dir", str(tiny_model.parent), "--drain-timeout", "4s", home=tmp_path, python=python
    )
    idle = http.client.HTTPConnection("127.0.0.1", live.port)
    idle.request("GET", "/health")
    idle.getresponse().read()  # the connection stays open
    seen: list[str] = []

    def endless() -> None:
        try:
            body = chat("tiny", "go on", max_tokens=100_000)
            seen.extend(line for _, line in live.stream("/v1/chat/completions", body))
        except (OSError, http.client.HTTPException):
            seen.append("cut")

    thread = threading.Thread(target=endless)
    thread.start()
    while live.model_status()["decoding"] == 0:
        time.sleep(0.05)
    started = time.monotonic()
    code = live.stop()
    seconds = time.monotonic() - started
    thread.join()
    idle.close()
    assert code == 0, "".join(live.lines)
    assert seconds < 4 + 3
    figure(f"Python {version(python)}: exit code {code} after {seconds:.2f} s (limit 4 s)")


def test_every_command_exits_with_0(demo: Path, tmp_path: Path, figure: Figure) -> None:
    commands = [
        ["--help"], ["--version"], ["serve", "--help"],
        ["model", "list", "--model-dir", str(demo.parent)], ["model", "list", "--json"],
        ["config", "show"], ["config", "show", "--origin"], ["config", "show", "--json"],
        ["cache", "inspect"], ["cache", "inspect", "--json"],
        ["cache", "prune", "--all", "--dry-run"], ["cache", "prune", "--all"],
    ]  # fmt: skip
    for args in commands:
        done = run_omlx(*args, home=tmp_path)
        assert done.returncode == 0, (args, done.stderr)
    assert run_omlx("serve", home=tmp_path).returncode == 1, "no models: an error that says so"
    assert run_omlx("nonsense", home=tmp_path).returncode == 2
    figure(f"{len(commands)} commands exit with 0; no models 1; usage 2")
