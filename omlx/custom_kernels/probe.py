"""Says which mlx there is and what it computes on, as a line of JSON; run as a program.

It has a process of its own, which a broken library may end. Knows nothing about who asks.
"""

import json
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_SIZE = 512
_ROUNDS = 3


def probe() -> dict[str, object]:
    """Keys: mlx (its version or None), error, backend (metal, cuda, cpu), device, gflops, kernels.

    `kernels` are the states of all kernels by name, empty on a CPU.
    """
    try:
        found = version("mlx")
    except PackageNotFoundError:
        return {"mlx": None, "error": "mlx is not installed"}
    try:
        from omlx.custom_kernels.backend import this_backend
        from omlx.custom_kernels.status import kernel_status, records_of_home

        backend = this_backend()
        kernels = [] if backend is None else kernel_status(records_of_home(), backend)
    except (ImportError, OSError, RuntimeError) as error:
        return {"mlx": found, "error": str(error) or type(error).__name__}
    name = platform.processor() or platform.machine()
    return {
        "mlx": found,
        "error": None,
        "backend": "cpu" if backend is None else backend.device.backend,
        "device": name if backend is None else backend.device.name,
        "gflops": _gflops(),
        "kernels": {one.name: one.state for one in kernels},
    }


def _gflops() -> float:
    """Speed of a product of float32 matrices, the best of some rounds, in 10^9 a second."""
    import mlx.core

    mx: Any = mlx.core
    left, right = mx.ones((_SIZE, _SIZE)), mx.ones((_SIZE, _SIZE))
    mx.eval(left @ right)
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        mx.eval(left @ right)
        best = min(best, time.perf_counter() - begin)
    mx.clear_streams()
    return 2 * _SIZE**3 / best / 1e9


if __name__ == "__main__":
    print(json.dumps(probe()))
