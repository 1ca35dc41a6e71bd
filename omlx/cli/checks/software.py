"""Python, mlx with its device and BLAS, and how many omlx there are.

Knows nothing about models or servers; mlx is asked in a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from omlx import __version__
from omlx.cli.checks.finding import Finding, Look, broken, ok, warning
from omlx.errors import EngineError
from omlx.launch.service.tool import Done

_FIRST, _BEYOND = (3, 11), (3, 14)
_PROBE_S = 120.0
_SLOW_GFLOPS = 8.0  # of a CPU; the reference BLAS of mlx's wheel reaches about 1 to 4


def ask_mlx(env: Mapping[str, str], library: str | None) -> Done:
    """Run the probe with the BLAS that engines get."""
    from omlx.engine.blas import with_preload

    words = [sys.executable, "-m", "omlx.custom_kernels.probe"]
    root = Path(__file__).resolve().parents[3]  # this omlx, however this process found it
    env = {name: value for name, value in env.items() if name != "PYTHONSAFEPATH"}
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=root,
            env=with_preload(env, library),
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return Done(124, err=str(error))
    return Done(done.returncode, done.stdout, done.stderr)


def read_probe(done: Done) -> Mapping[str, object]:
    """What the probe said; where it died, that."""
    lines = done.out.strip().splitlines()
    try:
        said: object = json.loads(lines[-1]) if lines and done.code == 0 else None
    except ValueError:
        said = None
    if isinstance(said, dict):
        return cast(dict[str, object], said)
    how = f"signal {-done.code}" if done.code < 0 else f"exit code {done.code}"
    return {"mlx": "?", "error": f"importing it ended with {how}: {done.said}"}


def check_python(look: Look) -> Iterator[Finding]:
    """The version, and an interpreter for another processor."""
    shown = ".".join(map(str, look.python))
    text = f"omlx {__version__} on Python {shown}, {look.executable}"
    if not _FIRST <= look.python[:2] < _BEYOND:
        yield broken(
            "python", f"{text}: omlx needs 3.11, 3.12 or 3.13",
            "uv tool install --python 3.13 omlx, or pipx install --python python3.13 omlx",
        )  # fmt: skip
    elif look.system == "darwin" and look.arch == "x86_64":
        yield broken(
            "python", f"{text}: it is built for Intel, and mlx needs Apple silicon",
            "install an arm64 Python, such as that of Homebrew in /opt/homebrew",
        )  # fmt: skip
    else:
        yield ok("python", text)


def check_installations(look: Look) -> Iterator[Finding]:
    """Several omlx on PATH: which one is called depends on the terminal."""
    found: dict[Path, Path] = {}
    for folder in look.env.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder) / "omlx"
        if folder and path.is_file() and os.access(path, os.X_OK):
            found.setdefault(path.resolve(), path)
    if len(found) > 1:
        first, *others = map(str, found.values())
        yield warning(
            "installations", f"several omlx are on PATH: {first} comes before {', '.join(others)}",
            "uninstall all but one (pipx uninstall omlx, uv tool uninstall omlx, "
            "brew uninstall omlx, pip uninstall omlx)",
        )  # fmt: skip


def check_mlx(look: Look) -> Iterator[Finding]:
    """Whether mlx can be loaded, and what it computes on."""
    said, error = look.probe, look.probe.get("error")
    if error:
        yield broken("mlx", f"mlx can't be used: {error}", _mlx_fix(look))
        return
    device = f"{said.get('backend')} ({said.get('device')})"
    text = f"mlx {said.get('mlx')} computes on {device}, {_rate(said)}"
    if said.get("backend") == "cpu" and _has_nvidia(look):
        yield warning(
            "mlx", f"{text}; there is an NVIDIA GPU", "pip install 'omlx[cuda13]' (or cuda12)"
        )
    elif said.get("backend") == "cpu" and look.system == "darwin":
        yield warning(
            "mlx", f"{text}, and not on the GPU", "a virtual machine has none; else install again"
        )
    else:
        yield ok("mlx", text)


def _mlx_fix(look: Look) -> str:
    if look.system == "darwin":
        return "pip install --force-reinstall omlx, with a Python for Apple silicon"
    if _has_nvidia(look):
        return "pip install 'omlx[cuda13]' (or 'omlx[cuda12]'; 'omlx[cpu]' leaves the GPU out)"
    return "pip install 'omlx[cpu]' (for an NVIDIA GPU 'omlx[cuda13]' or 'omlx[cuda12]')"


def _has_nvidia(look: Look) -> bool:
    return (look.root / "dev" / "nvidiactl").exists()


def _rate(said: Mapping[str, object]) -> str:
    rate = said.get("gflops")
    return f"{rate:,.0f} GFLOPS" if isinstance(rate, int | float) else "speed unknown"


def check_blas(look: Look) -> Iterator[Finding]:
    """The BLAS that a CPU computes with."""
    from omlx.engine.blas import preload_library

    if look.probe.get("error") or look.probe.get("backend") != "cpu" or look.system != "linux":
        return
    try:
        library = preload_library(look.resolved.settings.engine.blas)
    except EngineError as error:
        yield broken("blas", error.message, error.hint)
        return
    rate = look.probe.get("gflops")
    if library is None:
        yield warning(
            "blas", "no OpenBLAS is found, and the BLAS of mlx's wheel is 8 to 20 times slower",
            "apt install libopenblas0-pthread (or the like), or set engine.blas to a library",
        )  # fmt: skip
    elif isinstance(rate, int | float) and rate < _SLOW_GFLOPS:
        yield warning(
            "blas", f"{library} is found, and products are slow all the same: {rate:.1f} GFLOPS",
            "see that nothing else runs, and that it is built for this processor",
        )  # fmt: skip
    else:
        yield ok("blas", f"engines compute with {library}")


def kernels_of(probe: Mapping[str, object]) -> dict[str, str]:
    """The states of the kernels by name; empty where there is no GPU."""
    found = probe.get("kernels")
    if not isinstance(found, dict):
        return {}
    return {str(name): str(state) for name, state in cast(dict[object, object], found).items()}


def check_kernels(look: Look) -> Iterator[Finding]:
    """Whether the kernels for this GPU are built."""
    states = kernels_of(look.probe)
    if not states:
        return
    if not look.resolved.settings.kernels.enabled:
        yield warning("kernels", "they are off by setting", "omlx config unset kernels.enabled")
        return
    missing = [name for name, state in states.items() if state == "not built"]
    failed = [name for name, state in states.items() if state == "failed"]
    if failed:
        yield warning("kernels", f"wrong on this device, and not used: {', '.join(failed)}",
                      "omlx kernel build --again, after an update of omlx or mlx")  # fmt: skip
    if missing:
        yield warning("kernels", f"not built: {', '.join(missing)}", "omlx kernel build")
    if not failed and not missing:
        yield ok("kernels", "all that this device can have are verified")


CHECKS = (check_python, check_installations, check_mlx, check_blas, check_kernels)
