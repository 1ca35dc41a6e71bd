"""What the benches share: the machine they ran on, intervals of ratios, the page cache.

Knows nothing about what is measured.
"""

import math
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import mlx.core as mx
import psutil

ROOT = Path(__file__).resolve().parents[2]


def commit():
    """The commit that is checked out; empty outside of a clone."""
    git = ROOT / ".git"
    if git.is_file():
        git = Path(git.read_text().removeprefix("gitdir:").strip())
    if not (git / "HEAD").is_file():
        return ""
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    base = git / "commondir"
    folders = [git, git / base.read_text().strip()] if base.is_file() else [git]
    for folder in folders:
        if (folder / ref).is_file():
            return (folder / ref).read_text().strip()
        if (folder / "packed-refs").is_file():
            for line in (folder / "packed-refs").read_text().splitlines():
                if line.endswith(f" {ref}"):
                    return line.split()[0]
    return ""


def machine():
    """What the figures depend on."""
    return {
        "commit": commit(),
        "device": mx.device_info().get("device_name", ""),
        "backend": str(mx.default_device()),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_at_end": round(os.getloadavg()[0], 2),
        "mlx": mx.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def interval(ratios: Sequence[float]):
    """Geometric mean of ratios and its two-sided 95 % interval (Student's t, on logs)."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.fmean(logs)
    half = math.inf
    if len(logs) > 1:
        half = student(len(logs) - 1) * statistics.stdev(logs) / len(logs) ** 0.5
    return {
        "ratio": round(math.exp(mean), 4),
        "low95": round(math.exp(mean - half), 4),
        "high95": round(math.exp(mean + half), 4),
        "pairs": len(ratios),
    }


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t."""
    few = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
    return few[freedom - 1] if freedom <= len(few) else 1.96 + 2.5 / freedom


def percentile(values: Iterable[float], share: float) -> float:
    """The value that `share` of all don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def sync_files(paths: Iterable[Path]) -> None:
    """Have the files on the disk, so that their pages are clean."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def drop_pages(paths: Iterable[Path]) -> bool:
    """Ask for the files to leave the page cache; False where that can't be asked for."""
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:
        return False
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            advise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return True
