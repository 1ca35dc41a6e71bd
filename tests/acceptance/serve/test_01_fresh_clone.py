"""Point 1: from a fresh clone, ./scripts/run serves and its curl answers; ./scripts/test passes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY


def environment(home: Path) -> dict[str, str]:
    """Nothing but Python and what the package clients need."""
    keep = ("PATH", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    env = {k: v for k, v in os.environ.items() if k in keep or k.startswith(("PIP_", "UV_"))}
    python = Path(os.path.realpath(sys.executable))
    return {**env, "HOME": str(home), "PYTHON": str(python)}


def answer_of_the_printed_curl(clone: Path, env: dict[str, str]) -> str:
    with subprocess.Popen(
        ["./scripts/run", "--port", "0"],
        cwd=clone, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        lines: list[str] = []
        curl = ""
        for line in process.stderr:
            lines.append(line)
            if curl or line.startswith("curl "):
                curl += line
                if not line.rstrip().endswith("\\"):
                    break
        try:
            assert curl, "no curl command was printed:\n" + "".join(lines)
            answer = subprocess.run(
                ["bash", "-c", curl], capture_output=True, text=True, timeout=300
            )
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    return answer.stdout


@pytest.mark.parametrize("clone_number", [1, 2])
def test_a_fresh_clone_serves_and_passes(clone_number: int, tmp_path: Path, figure: Figure) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(clone)], check=True)
    env = environment(home)
    started = time.monotonic()
    answer = answer_of_the_printed_curl(clone, env)
    served_s = time.monotonic() - started
    assert "Paris" in answer, answer
    started = time.monotonic()
    done = subprocess.run(["./scripts/test"], cwd=clone, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.findall(r"(\d+) passed", done.stdout)
    assert passed
    minutes = (time.monotonic() - started) / 60
    figure(
        f"clone {clone_number}: curl names Paris after {served_s:.0f} s, "
        f"scripts/test: {' + '.join(passed)} passed in {minutes:.1f} min"
    )
