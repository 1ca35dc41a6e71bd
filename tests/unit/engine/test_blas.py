"""Which BLAS is preloaded: the setting, the system, and never in place of CUDA."""

import ctypes.util
import os
from pathlib import Path

import pytest

from omlx.engine.blas import preload_library, with_preload
from omlx.errors import EngineError


def preload(
    setting: str, *installed: str, platform: str = "linux", found: str | None = "libopenblas.so.0"
) -> str | None:
    """The answer on such a machine."""
    return preload_library(
        setting,
        platform=platform,
        find_library={"openblas": found}.__getitem__,
        is_installed=installed.__contains__,
    )


def test_auto_takes_the_one_of_the_system() -> None:
    assert preload("auto") == "libopenblas.so.0"


def test_auto_without_one() -> None:
    assert preload("auto", found=None) is None


@pytest.mark.parametrize("package", ["mlx-cuda", "mlx-cuda-12", "mlx-cuda-13"])
def test_auto_leaves_cuda_alone(package: str) -> None:
    assert preload("auto", "mlx", package) is None
    assert preload("auto", "mlx") is not None


def test_off() -> None:
    assert preload("off") is None


@pytest.mark.parametrize("setting", ["auto", "/nowhere/libblas.so"])
def test_other_systems_preload_nothing(setting: str) -> None:
    assert preload(setting, platform="darwin") is None


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    library = tmp_path / "libblas.so"
    library.touch()
    assert preload(str(library), "mlx-cuda") == str(library)


@pytest.mark.parametrize("name", ["missing.so", "."])
def test_a_path_without_a_file_is_an_error_with_a_hint(tmp_path: Path, name: str) -> None:
    with pytest.raises(EngineError, match="is not a file") as caught:
        preload(str(tmp_path / name))
    assert '"auto"' in caught.value.hint


def test_this_machine_is_asked_by_default() -> None:
    assert preload_library("off") is None
    assert preload_library("auto") in (None, ctypes.util.find_library("openblas"))


def test_the_library_goes_first() -> None:
    env = {"PATH": "/bin", "LD_PRELOAD": "/lib/other.so"}
    got = with_preload(env, "libopenblas.so.0")
    assert got == {"PATH": "/bin", "LD_PRELOAD": f"libopenblas.so.0{os.pathsep}/lib/other.so"}
    assert env["LD_PRELOAD"] == "/lib/other.so"


@pytest.mark.parametrize("env", [{}, {"LD_PRELOAD": ""}])
def test_the_library_alone(env: dict[str, str]) -> None:
    assert with_preload(env, "a.so") == {"LD_PRELOAD": "a.so"}


def test_nothing_to_preload_changes_nothing() -> None:
    assert with_preload({"A": "1"}, None) == {"A": "1"}
    assert with_preload({"LD_PRELOAD": "x"}, None) == {"LD_PRELOAD": "x"}
