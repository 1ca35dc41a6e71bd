"""The machine that settings are for: its kind, its memory, and what models may take of it.

Knows nothing about models, and never imports mlx: the server asks, too.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType

_GIB = 2**30
_CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13")
# Of what the GPU or the system gives to one process, what stays for others.
RESERVE: Mapping[str, float] = MappingProxyType(
    {"safe": 1 / 4, "balanced": 1 / 8, "aggressive": 1 / 20}
)
HARDWARE_GB = (16, 24, 32, 48, 64, 96, 128, 192, 256, 512)


class MachineKind(StrEnum):
    """What computes."""

    METAL = "metal"
    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine and its memory; `device` asks for that of the first CUDA device."""

    kind: MachineKind
    memory_bytes: int
    device: Callable[[], int | None] = lambda: None

    @property
    def profile(self) -> str:
        """The name of the hardware profile that is made for it."""
        if self.kind is not MachineKind.METAL:
            return self.kind.value
        # A machine is sold as "36 GB" and between two profiles: it gets the smaller one.
        fitting = [gb for gb in HARDWARE_GB if gb * _GIB <= self.memory_bytes]
        return f"{fitting[-1] if fitting else HARDWARE_GB[0]}gb"

    def usable_bytes(self) -> int:
        """What one process can have: device memory, Metal's working set, or all memory."""
        if self.kind is MachineKind.CUDA and (on_device := self.device()) is not None:
            return on_device
        if self.kind is MachineKind.METAL:
            # What macOS recommends as the working set of a GPU, by what it reports on machines.
            share = 0.75 if self.memory_bytes > 36 * _GIB else 2 / 3
            return int(self.memory_bytes * share)
        return self.memory_bytes

    def ceiling_bytes(self, limit: int | str) -> int:
        """What models and caches may take together: a size, or all but the reserve of a tier."""
        usable = self.usable_bytes()
        if isinstance(limit, int):
            return min(limit, usable)
        return int(usable * (1 - RESERVE[limit]))


def this_machine(
    *,
    platform: str = sys.platform,
    root: Path = Path("/"),
    memory: Callable[[], int] | None = None,
    has_cuda_build: Callable[[], bool] | None = None,
    device: Callable[[], int | None] | None = None,
) -> Machine:
    """What this process runs on; a container's limit counts as its memory."""
    physical = (memory or _physical_bytes)()
    if platform == "darwin":
        return Machine(MachineKind.METAL, physical)
    limits = [physical, *_cgroup_limits(root)]
    has_device = (root / "dev" / "nvidiactl").exists()
    if has_device and (has_cuda_build or _has_cuda_build)():
        return Machine(MachineKind.CUDA, min(limits), device or _device_bytes)
    return Machine(MachineKind.CPU, min(limits))


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _has_cuda_build() -> bool:
    for name in _CUDA_BUILDS:
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return True
    return False


def _device_bytes() -> int | None:
    """The memory of the first device, as its driver's tool says; None if that can't be asked."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return int(done.stdout.split()[0]) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _cgroup_limits(root: Path) -> list[int]:
    """The limits of the control groups around this process, of either version."""
    base = root / "sys" / "fs" / "cgroup"
    files = [base / "memory.max", base / "memory" / "memory.limit_in_bytes"]
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in lines:
        if line.startswith("0::/"):
            own = base / line.removeprefix("0::/")
            inside = [folder for folder in (own, *own.parents) if base in folder.parents]
            files += [folder / "memory.max" for folder in inside]
    return [limit for file in files if (limit := _number_in(file)) is not None]


def _number_in(file: Path) -> int | None:
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() and int(text) > 0 else None
