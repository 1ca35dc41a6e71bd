"""Point 4: `omlx kernel` on a machine without a GPU, and verdicts that don't hold any more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.records import Verdict, read_records
from omlx.custom_kernels.selection import Selection
from omlx.custom_kernels.status import kernel_status
from omlx.models.kernels import use_kernels
from tests.acceptance.conftest import Figure
from tests.fakes.kernels import FakeBackend, records_of
from tests.unit.models.test_kernels import quantized


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "OMLX_HOME": str(tmp_path)}


def omlx(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omlx", "kernel", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("content", [None, "", "{broken", '{"format": 1, "records": [1, {}]}'])
def test_without_a_gpu_build_explains_and_status_works(
    home: dict[str, str], tmp_path: Path, content: str | None, figure: Figure
) -> None:
    assert mx.default_device().type is mx.DeviceType.cpu
    if content is not None:
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "kernels.json").write_text(content)
    built, shown = omlx("build", env=home), omlx("status", "--json", env=home)
    assert built.returncode == 0 and "there is nothing to build" in built.stdout
    assert shown.returncode == 0
    whole = json.loads(shown.stdout)
    assert whole["device"] is None
    assert [one["name"] for one in whole["kernels"]] == list(NAMES)
    assert {one["state"] for one in whole["kernels"]} == {"no kernel here"}
    assert omlx("status", env=home).returncode == 0
    if content is None:
        figure(f"build: exit {built.returncode}: {built.stdout.strip()}")


def test_python_is_told_the_same(home: dict[str, str]) -> None:
    code = (
        "import sys, omlx.custom_kernels as kernels; assert 'mlx' not in sys.modules; "
        "print([one.name for one in kernels.native_kernel_status()])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == str(list(NAMES)), done.stderr


def states(path: Path, backend: FakeBackend) -> set[str]:
    return {one.state for one in kernel_status(path, backend)}


def test_a_verdict_that_does_not_hold_asks_for_another(tmp_path: Path, figure: Figure) -> None:
    backend = FakeBackend()
    path = records_of(tmp_path / "kernels.json", backend)
    whole = path.read_text()
    assert states(path, backend) == {"verified"}
    for spoiled in (whole[: len(whole) // 2], whole.replace('"verified"', '"fine"')):
        path.write_text(spoiled)
        assert states(path, backend) == {"not built"}
    path.write_text(whole.replace(backend.device.mlx, "0.31.0"))
    assert states(path, backend) == {"not built"}
    path.write_text(whole)
    assert "not built" in states(path, FakeBackend(revision="2"))
    served = use_kernels(quantized(), Selection(FakeBackend(revision="2"), read_records(path)))
    assert "qmm_small" in served.lacking and "qmm_small" not in served.used
    figure("half a file, an odd verdict, another mlx, another source: all verified again")


def test_a_kernel_that_failed_is_never_used(tmp_path: Path) -> None:
    backend = FakeBackend(calls=([],))
    path = records_of(
        tmp_path / "kernels.json", backend, verdict=Verdict.FAILED, reason="an error of 3"
    )
    model = quantized()
    served = use_kernels(model, Selection(backend, read_records(path)))
    assert served.used == {} and set(served.lacking.values()) == {
        "failed verification: an error of 3"
    }
    mx.eval(model(mx.zeros((1, 1), dtype=mx.int32)))
    assert backend.calls[0] == []
