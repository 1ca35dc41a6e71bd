"""What figures depend on: the machine, versions, the commit.

Knows nothing about what was measured; never imports mlx, whose version its metadata tells.
"""

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from omlx import __version__
from omlx.bench.result import Value

_PACKAGES = ("mlx", "mlx-lm", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "numpy")
_ROOT = Path(__file__).resolve().parents[2]
_ASK_S = 5.0


def describe() -> dict[str, Value]:
    """Facts of this machine, for `Report.machine`; sizes in bytes, no names of users or hosts."""
    return {
        "omlx": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": round(os.getloadavg()[0], 2),
        **{name: version for name in _PACKAGES if (version := version_of(name)) is not None},
    }


def version_of(package: str) -> str | None:
    """The version of a package that is installed here; None if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The name of the processor; empty where the system doesn't tell."""
    if sys.platform == "darwin":
        return _asked("sysctl", "-n", "machdep.cpu.brand_string")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    """The commit of the checkout that this runs from, with "+" where files differ; else empty."""
    if not (_ROOT / ".git").exists():
        return ""
    head = _asked("git", "-C", str(_ROOT), "rev-parse", "HEAD")
    if not head:
        return ""
    changed = _asked("git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if changed else "")


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
