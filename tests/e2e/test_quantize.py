"""`omlx quantize` and `omlx model import` as processes, on small models: made, killed, taken up."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from mlx_lm.utils import load_model

from omlx.models.locate import discover
from tests.live import REPOSITORY, command, run_omlx, wait_until
from tests.quantizing import kl, small_model
from tests.unit.models import gguf_writer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ARGS = ["--bits", "5", "--calibration-tokens", "256"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small", "qwen3")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_plan_and_then_the_model(model: Path, tmp_path: Path) -> None:
    args = ["quantize", str(model), "-o", str(tmp_path / "out"), *ARGS]
    plan = run_omlx(*args, "--plan", home=tmp_path)
    assert plan.returncode == 0, plan.stderr
    assert "predicted KL" in plan.stdout
    assert not (tmp_path / "out").exists()
    done = run_omlx(*args, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["resumed"] is True
    assert document["bits"] <= 5.0
    load_model(tmp_path / "out")
    (entry,) = discover([tmp_path / "out"]).models
    assert entry.quantization is not None
    assert kl(model, tmp_path / "out") < 0.3


def test_killed_with_its_child_and_taken_up_to_the_same_bytes(model: Path, tmp_path: Path) -> None:
    """Q1: a kill in the middle."""
    whole = ["quantize", str(model), *ARGS, "-o", str(tmp_path / "whole")]
    assert run_omlx(*whole, home=tmp_path).returncode == 0
    cut = ["quantize", str(model), *ARGS, "-o", str(tmp_path / "cut")]
    process = subprocess.Popen(
        command(*cut),
        cwd=REPOSITORY,
        env={**os.environ, "OMLX_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    work = tmp_path / ".cut.quantize"
    wait_until(lambda: len(list(work.glob("cost-*.json"))) >= 2, timeout_s=120, poll_s=0.01)
    children = psutil.Process(process.pid).children(recursive=True)
    for child in children:
        child.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut").exists()
    done = run_omlx(*cut, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed"] is True
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (["no-such-model", "--bits", "4"], 1, "there is no model 'no-such-model'"),
        (["MODEL"], 2, "one of --bits, --size and --quality"),
        (["MODEL", "--bits", "4", "--size", "1GB"], 2, "one of --bits, --size and --quality"),
        (["MODEL", "--size", "many"], 2, "--size: 'many' is not a number"),
        (["MODEL", "--bits", "2"], 1, "--bits 2 is less than this model can take"),
        (["MODEL", "--bits", "4", "--calibration", "/none"], 1, "can't be read"),
    ],
)
def test_what_can_not_be_made_is_one_error(
    model: Path, tmp_path: Path, args: list[str], code: int, error: str
) -> None:
    given = [str(model) if arg == "MODEL" else arg for arg in args]
    done = run_omlx("quantize", *given, "-o", str(tmp_path / "out"),
                    "--calibration-tokens", "64", home=tmp_path)  # fmt: skip
    assert done.returncode == code, done.stderr
    assert f"error: {error}" in done.stderr or error in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_is_imported_and_rounded_again(tmp_path: Path) -> None:
    source = gguf_writer.llama(tmp_path / "model.gguf")
    done = run_omlx("model", "import", str(source), home=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder == tmp_path / "models" / "model"
    load_model(folder)
    again = run_omlx("model", "import", str(source), home=tmp_path)
    assert again.returncode == 1
    assert "is already there" in again.stderr
    out = tmp_path / "small"
    done = run_omlx("model", "import", str(source), "-o", str(out), "--bits", "6", home=tmp_path)
    assert done.returncode == 0, done.stderr
    _, config = load_model(out)
    assert "quantization" in config
    assert not list(tmp_path.glob(".small*"))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF" + os.urandom(64))
    done = run_omlx("model", "import", str(source), home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {source}")
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").iterdir())
