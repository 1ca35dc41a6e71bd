"""One kernel source as a function of arrays, compiled by mlx when it is first evaluated.

Knows nothing of what a kernel computes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.source import Source

_mx: Any = mx
Run = Callable[[list[mx.array]], list[mx.array]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Blocks (threadgroups) along x and y, threads of each along x, and the memory they share.

    `shared_bytes` is for CUDA, beside what a source declares itself.
    """

    blocks: int
    threads: int
    rows: int = 1
    shared_bytes: int = 0


class Kernel:
    """A compiled source; its name has the source's digest, since mlx keeps compiled code by name.

    With `fill` the outputs have that value before the kernel writes them.
    """

    def __init__(
        self,
        backend: str,
        source: Source,
        inputs: Sequence[str],
        outputs: Sequence[str] = ("y",),
        *,
        fill: float | None = None,
    ) -> None:
        self._is_cuda = backend == "cuda"
        self._source = {
            "name": f"omlx_{source.name}_{source.digest[:12]}",
            "input_names": list(inputs),
            "output_names": list(outputs),
            "header": source.header,
            "source": source.body,
        }
        self._more = {} if fill is None else {"init_value": fill}

    def prepare(
        self,
        *,
        template: Mapping[str, Any],
        grid: Grid,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
    ) -> Run:
        """A function of the inputs that gives the outputs, of `shapes` and `dtypes`.

        Input types must follow from `template`: mlx takes no other account of them. What a call
        needs beside its inputs is made once, since a decode step has hundreds of calls.
        """
        options: dict[str, Any] = {
            "template": list(template.items()),
            "grid": (grid.blocks * grid.threads, grid.rows, 1),
            "threadgroup": (grid.threads, 1, 1),
            "output_shapes": [tuple(shape) for shape in shapes],
            "output_dtypes": list(dtypes),
            **self._more,
        }
        if self._is_cuda:
            call = _mx.fast.cuda_kernel(**self._source, shared_memory=grid.shared_bytes)
        else:
            call = _mx.fast.metal_kernel(**self._source)
        return lambda inputs: call(inputs=inputs, **options)
