"""The device that kernels are compiled for, and how a source becomes a function on it.

Knows nothing of what kernels compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx

from omlx.custom_kernels.launch import Grid, Kernel, Run
from omlx.custom_kernels.source import SUFFIXES, read_source
from omlx.settings.places import data_dir

_mx: Any = mx


@dataclass(frozen=True, slots=True)
class Device:
    """What a verdict holds for: "cuda" or "metal", the name of the GPU, the version of mlx."""

    backend: str
    name: str
    mlx: str


class Launch(Protocol):
    """One kernel of a device, as `launch.Kernel` is."""

    def prepare(
        self,
        *,
        template: Mapping[str, Any],
        grid: Grid,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
    ) -> Run:
        """A function of the inputs that gives the outputs, of `shapes` and `dtypes`."""
        ...


class Backend(Protocol):
    """Where kernels run."""

    @property
    def device(self) -> Device:
        """What its verdicts hold for."""
        ...

    def digest(self, name: str) -> str | None:
        """What the source of a kernel consists of, as a hash; None where there is none."""
        ...

    def kernel(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Launch:
        """The kernel; OmlxError where its source is not there."""
        ...

    def poisoned(self) -> "Backend":
        """The same, whose kernels find their outputs full of NaN."""
        ...


class Compiled:
    """The GPU that mlx computes on, with the sources of `folder` (default: those of omlx)."""

    def __init__(self, device: Device, *, folder: Path | None = None, poison: bool = False) -> None:
        self.device = device
        self._folder = folder or data_dir("kernels")
        self._poison = poison

    def digest(self, name: str) -> str | None:
        """The hash of a kernel's source, with all that it includes."""
        backend = self.device.backend
        path = self._folder / backend / f"{name}.{SUFFIXES[backend]}"
        return read_source(backend, name, folder=self._folder).digest if path.exists() else None

    def kernel(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Launch:
        """A kernel that is compiled at its first use; OmlxError."""
        source = read_source(self.device.backend, name, folder=self._folder)
        fill = float("nan") if self._poison else None
        return Kernel(self.device.backend, source, inputs, outputs, fill=fill)

    def poisoned(self) -> Backend:
        """The same, whose kernels find their outputs full of NaN."""
        return Compiled(self.device, folder=self._folder, poison=True)


def this_backend() -> Backend | None:
    """That of the GPU that mlx computes on; None where its default device is the CPU."""
    if _mx.default_device().type is not _mx.DeviceType.gpu:
        return None
    name = "metal" if _mx.metal.is_available() else "cuda"
    info: dict[str, Any] = _mx.device_info()
    device = str(info.get("device_name") or info.get("architecture") or name)
    return Compiled(Device(name, device, version("mlx")))
