"""A GPU that isn't there: kernels are plain functions that get what a launch hands to mlx.

They compute in float32 and round once, as the real ones do; `broken` ones are wrong in a way each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend, Device, Launch
from omlx.custom_kernels.launch import Grid, Run
from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.records import Record, Verdict, write_record
from omlx.custom_kernels.registry import digest, operation

DEVICE = Device("cuda", "Reference 9000", "0.32.4")
Template = Mapping[str, Any]
Arrays = Sequence[mx.array]


def _matrix(words: mx.array, scales: mx.array, biases: mx.array, template: Template) -> mx.array:
    return mx.dequantize(
        words,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=template["GROUP"],
        bits=template["BITS"],
    )


def _normed(x: mx.array, norm: mx.array, eps: mx.array) -> mx.array:
    return mx.fast.rms_norm(x.astype(mx.float32), norm.astype(mx.float32), eps.item())


def _qmm_small(inputs: Arrays, template: Template) -> Arrays:
    x, words, scales, biases, r = inputs
    y = x.astype(mx.float32) @ _matrix(words, scales, biases, template).T
    return [y.astype(x.dtype) + r if template["RESIDUAL"] else y]


def _gemm_small(inputs: Arrays, template: Template) -> Arrays:
    x, w = inputs
    return [x.astype(mx.float32) @ w.astype(mx.float32).T]


def _norm_qkv(inputs: Arrays, template: Template) -> Arrays:
    x, norm, eps, *weights = inputs
    matrix = mx.concatenate([_matrix(*weights[i : i + 3], template) for i in (0, 3, 6)])
    return [_normed(x, norm, eps) @ matrix.T]


def _norm_gate_up(inputs: Arrays, template: Template) -> Arrays:
    x, norm, eps, *weights = inputs
    gate, up = (_normed(x, norm, eps) @ _matrix(*weights[i : i + 3], template).T for i in (0, 3))
    return [gate * mx.sigmoid(gate) * up]


def _qk_rope(inputs: Arrays, template: Template) -> Arrays:
    qkv, wq, wk, eps, offset, frequency = inputs
    num_q, num_k, size = template["HQ"], template["HK"], template["D"]
    heads = qkv.reshape(qkv.shape[0], num_q + 2 * num_k, 1, size)
    parts = [heads[:, :num_q], heads[:, num_q : num_q + num_k], heads[:, num_q + num_k :]]
    angle = (offset.astype(mx.float32)[:, None] * frequency)[:, None, None, :]

    def turned(x: mx.array, weight: mx.array) -> mx.array:
        x = _normed(x, weight, eps).astype(qkv.dtype) if template["NORM"] else x
        a, b = mx.split(x.astype(mx.float32), 2, axis=-1)
        cos, sin = mx.cos(angle), mx.sin(angle)
        return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    return [turned(parts[0], wq), turned(parts[1], wk), parts[2]]


_KERNELS: dict[str, Callable[[Arrays, Template], Arrays]] = {
    "qmm_small": _qmm_small,
    "gemm_small": _gemm_small,
    "norm_qkv": _norm_qkv,
    "norm_gate_up": _norm_gate_up,
    "qk_rope": _qk_rope,
}


@dataclass(frozen=True)
class FakeBackend:
    """A device whose kernels are plain functions; `calls` counts their launches, by name.

    `broken` says how kernels are wrong: "off" by a little, "silent" where they leave the last
    column as it was, "refused" by the compiler, "absent" without a source.
    """

    device: Device = DEVICE
    broken: tuple[tuple[str, str], ...] = ()
    revision: str = "1"
    poison: bool = False
    calls: tuple[list[str], ...] = ([],)

    def digest(self, name: str) -> str | None:
        """One for each name and revision."""
        absent = dict(self.broken).get(name) == "absent"
        return None if absent else f"{name} {self.revision}"

    def kernel(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Launch:
        """The plain function as a launch."""
        return _FakeLaunch(self, name, len(inputs), len(outputs))

    def poisoned(self) -> Backend:
        """Outputs are NaN before."""
        return replace(self, poison=True)


@dataclass(frozen=True)
class _FakeLaunch:
    backend: FakeBackend
    name: str
    num_inputs: int
    num_outputs: int

    def prepare(
        self,
        *,
        template: Template,
        grid: Grid,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
    ) -> Run:
        """What computes, and is as wrong as the backend says."""
        assert len(shapes) == self.num_outputs and template["T"] == dtypes[0]
        assert grid.blocks > 0 and 0 < grid.threads <= 1024
        return lambda inputs: self._run(inputs, template, shapes, dtypes)

    def _run(
        self,
        inputs: Arrays,
        template: Template,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        how = dict(self.backend.broken).get(self.name)
        if how == "refused":
            raise RuntimeError(f'{self.name}.cu(7): error: identifier "y" is undefined')
        self.backend.calls[0].append(self.name)
        assert len(inputs) == self.num_inputs
        found = _KERNELS[self.name](inputs, template)
        made = [
            one.astype(dtype).reshape(*shape)
            for one, shape, dtype in zip(found, shapes, dtypes, strict=True)
        ]
        if how == "off":
            made = [one * 1.5 for one in made]
        if how == "silent":
            before = float("nan") if self.backend.poison else 0.0
            made = [
                mx.concatenate([one[..., :-1], mx.full_like(one[..., -1:], before)], axis=-1)
                for one in made
            ]
        return made


def records_of(
    path: Path,
    backend: Backend,
    names: Sequence[str] = NAMES,
    *,
    speedup: float = 2.0,
    verdict: Verdict = Verdict.VERIFIED,
    reason: str = "",
) -> Path:
    """A file of verdicts on some kernels, at one speed-up in each class that is timed."""
    for name in names:
        op = operation(name)
        content = digest(op, backend)
        if content is None:
            continue
        device = backend.device
        record = Record(
            op=name,
            backend=device.backend,
            device=device.name,
            mlx=device.mlx,
            digest=content,
            verdict=verdict,
            reason=reason,
            speedups={case.shape_class: speedup for case in op.timed},
        )
        write_record(path, record)
    return path
