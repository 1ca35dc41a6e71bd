"""`omlx model pull` as a process: interrupted and killed while bytes come, and taken up again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.hub import FakeHub, model_files, serving
from tests.live import REPOSITORY, command, run_omlx, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub(repos={"org/name": model_files()})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def _size_of_parts(staging: Path) -> int:
    total = 0
    for part in staging.glob("*.part"):
        with suppress(FileNotFoundError):
            total += part.stat().st_size
    return total


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_and_taken_up_again(hub: FakeHub, tmp_path: Path, sig: signal.Signals) -> None:
    hub.pauses[WEIGHTS] = 0.2
    process = subprocess.Popen(
        command("model", "pull", "org/name"),
        cwd=REPOSITORY,
        env={**os.environ, "OMLX_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    staging = tmp_path / "models" / ".pull" / "org--name"
    wait_until(lambda: _size_of_parts(staging) > 200_000, timeout_s=240)
    process.send_signal(sig)
    out, err = process.communicate(timeout=120)
    assert out == ""
    assert "Traceback" not in err
    if sig is signal.SIGINT:
        assert process.returncode == 130
        assert "what was fetched is kept: the same command goes on from there" in err
    else:
        assert process.returncode == -sig
    assert '"models": []' in run_omlx("model", "list", "--json", home=tmp_path).stdout
    hub.pauses.clear()
    hub.requests.clear()
    done = run_omlx("model", "pull", "org/name", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/models/org/name\n")
    (asked,) = hub.asked_for(WEIGHTS)
    assert asked is not None and int(asked.removeprefix("bytes=")[:-1]) > 190_000
    weights = (tmp_path / "models" / "org" / "name" / WEIGHTS).read_bytes()
    assert weights == hub.repos["org/name"][WEIGHTS]
    assert "\nname   llama  " in run_omlx("model", "list", home=tmp_path).stdout


def test_two_at_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.pauses[WEIGHTS] = 0.3
    first = subprocess.Popen(
        command("model", "pull", "org/name"),
        cwd=REPOSITORY,
        env={**os.environ, "OMLX_HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    staging = tmp_path / "models" / ".pull" / "org--name"
    wait_until(lambda: any(staging.glob("*.part")), timeout_s=240)
    second = run_omlx("model", "pull", "org/name", home=tmp_path)
    assert second.returncode == 1
    assert "another omlx gets org/name" in second.stderr
    hub.pauses.clear()
    assert first.wait(240) == 0
    assert len(hub.asked_for(WEIGHTS)) == 1
