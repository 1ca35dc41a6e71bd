"""What is said of mlx: what it computes on, that it is missing, or why it does not load."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from omlx.cli.checks.software import ask_mlx, read_probe
from omlx.custom_kernels import probe


def test_the_mlx_of_this_machine() -> None:
    said = read_probe(ask_mlx(os.environ, None))
    assert said["error"] is None and said["backend"] in ("cpu", "cuda", "metal")
    rate = said["gflops"]
    assert isinstance(rate, float) and rate > 0


def test_no_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(probe, "version", missing)
    assert probe.probe() == {"mlx": None, "error": "mlx is not installed"}


def test_an_mlx_without_its_library(tmp_path: Path) -> None:
    """As plain mlx on Linux: the package is there, and what it loads is not."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "core.py").write_text(
        "raise ImportError('libmlx.so: cannot open shared object file')\n"
    )
    root = Path(probe.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "omlx.custom_kernels.probe"], cwd=root, check=True, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"},
    )  # fmt: skip
    assert "libmlx.so" in json.loads(done.stdout)["error"]
