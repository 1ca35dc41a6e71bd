"""Calls of every Metal kernel with random arrays, and their exact results in float64.

`launch_of` says how many rows a kernel is compiled for and how many threads it gets. Knows nothing
of compilers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.shim.calls import Array, Call

Numbers = np.ndarray[Any, Any]
EPS = 1e-5
# What rounding changes at most, relative to the number.
_ROUNDING = {"bfloat": 2.0**-8, "half": 2.0**-11}


@dataclass(frozen=True, slots=True)
class Case:
    """A call and its exact results; `label` names it, `noise` is what sums may be off by.

    Noise is in units of rounding, relative to the root mean square of a result.
    """

    label: str
    call: Call
    exact: tuple[Numbers, ...]
    noise: float

    def error(self, results: list[Array]) -> float:
        """The largest error over what is allowed; above 1 is wrong, as is a NaN (infinite)."""
        worst = 0.0
        for result, exact in zip(results, self.exact, strict=True):
            unit = _ROUNDING[self.call.kind] * 1.02
            allowed = unit * (np.abs(exact) + self.noise * np.sqrt(np.mean(exact**2)))
            error = np.abs(result.exact - exact) / allowed
            worst = max(worst, float(np.where(np.isnan(error), np.inf, error).max()))
        return worst


def launch_of(rows: int, out: int = 0) -> dict[str, int]:
    """ROWS, OUT and WARPS for a number of rows; another OUT than the usual one if given."""
    if rows <= 4:
        return {"ROWS": rows, "OUT": out or (8 if rows <= 2 else 4), "WARPS": 2}
    return {"ROWS": 8 if rows <= 8 else 16, "OUT": out or 8, "WARPS": 4}


def columns_for(rows: int, group: int) -> int:
    """K that is no multiple of what is taken at once: more than it, where lanes add up."""
    if rows <= 4:
        return {32: 1120, 64: 1088, 128: 1152}[group]
    return {32: 352, 64: 320, 128: 384}[group]


@dataclass(frozen=True, slots=True)
class Packed:
    """Random quantized weights [N, K], as arrays and in float64."""

    words: Array
    scales: Array
    biases: Array
    exact: Numbers

    @classmethod
    def random(
        cls, rng: np.random.Generator, shape: tuple[int, int], packing: tuple[str, int, int]
    ) -> "Packed":
        """Of a type, bits and group; products with normal numbers are of about one."""
        (num_out, num_in), (kind, bits, group) = shape, packing
        integers = rng.integers(0, 2**bits, shape, dtype=np.uint32)
        each = integers.reshape(num_out, -1, 32 // bits)
        words = (each << np.arange(0, 32, bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)
        groups = (num_out, num_in // group)
        unit = 2.0 ** (1 - bits) / num_in**0.5
        scales = Array.of(rng.uniform(0.5, 1.5, groups) * unit, kind)
        biases = Array.of(-scales.exact * 2 ** (bits - 1) + unit * rng.normal(size=groups), kind)
        spread = [np.repeat(array.exact, group, axis=1) for array in (scales, biases)]
        return cls(Array(words, "uint"), scales, biases, integers * spread[0] + spread[1])


def _template(kind: str, **values: int) -> tuple[tuple[str, Any], ...]:
    return (("T", kind), *values.items())


def _label(kernel: str, *parts: object) -> str:
    return "-".join([kernel, *map(str, parts)])


def _blocks(num: int, each: int) -> int:
    return -(-num // each)


def qmm_small(
    packing: tuple[str, int, int], rows: int, num_out: int, *, has_residual: bool = False,
    out: int = 0,
) -> Case:  # fmt: skip
    """x times quantized weights, and a residual if asked for."""
    kind, bits, group = packing
    rng = np.random.default_rng([bits, group, rows, num_out])
    num_in, launch = columns_for(rows, group), launch_of(rows, out)
    x = Array.of(rng.normal(size=(rows, 1, num_in)) + 0.5, kind)
    w = Packed.random(rng, (num_out, num_in), packing)
    r = Array.of(rng.normal(size=(rows, 1, num_out)), kind) if has_residual else x
    template = _template(kind, BITS=bits, GROUP=group, **launch, RESIDUAL=has_residual)
    inputs = (("x", x), ("w", w.words), ("scales", w.scales), ("biases", w.biases), ("r", r))
    grid = (_blocks(num_out, launch["OUT"] * launch["WARPS"]), 1, 32 * launch["WARPS"])
    exact = x.exact @ w.exact.T + (r.exact if has_residual else 0)
    label = _label(
        "qmm", *packing, rows, num_out, *(["residual"] * has_residual), *([out] * (out > 0))
    )
    call = Call("qmm_small", template, inputs, (("y", (rows, 1, num_out)),), grid)
    # A sum is rounded before a residual is added.
    return Case(label, call, (exact,), 2.0 if has_residual else 0.05)


def gemm_small(kind: str, rows: int, num_out: int, num_in: int, out: int = 0) -> Case:
    """x times 16-bit weights."""
    rng = np.random.default_rng([rows, num_out, num_in])
    launch = launch_of(rows, out)
    x = Array.of(rng.normal(size=(rows, 1, num_in)) + 0.5, kind)
    w = Array.of(rng.normal(size=(num_out, num_in)) / num_in**0.5, kind)
    grid = (_blocks(num_out, launch["OUT"] * launch["WARPS"]), 1, 32 * launch["WARPS"])
    outputs = (("y", (rows, 1, num_out)),)
    call = Call("gemm_small", _template(kind, **launch), (("x", x), ("w", w)), outputs, grid)
    label = _label("gemm", kind, rows, num_out, num_in, *([out] * (out > 0)))
    return Case(label, call, (x.exact @ w.exact.T,), 0.05)


def _normed(rng: np.random.Generator, kind: str, rows: int, num_in: int) -> tuple[Any, Numbers]:
    x = Array.of(rng.normal(size=(rows, 1, num_in)) * 3 + 0.5, kind)
    norm = Array.of(1 + 0.1 * rng.normal(size=num_in), kind)
    eps = Array.of(np.array([EPS]), "float")
    rms = np.sqrt(np.mean(x.exact**2, -1, keepdims=True) + EPS)
    return (("x", x), ("norm", norm), ("eps", eps)), x.exact / rms * norm.exact


def norm_qkv(packing: tuple[str, int, int], rows: int, outs: tuple[int, int, int]) -> Case:
    """The norm of x times three weights."""
    kind, bits, group = packing
    rng = np.random.default_rng([bits, group, rows, *outs])
    num_in, launch = columns_for(rows, group), launch_of(rows)
    inputs, normed = _normed(rng, kind, rows, num_in)
    exact: list[Numbers] = []
    for name, num in zip("qkv", outs, strict=True):
        w = Packed.random(rng, (num, num_in), packing)
        inputs += ((f"w{name}", w.words), (f"s{name}", w.scales), (f"b{name}", w.biases))
        exact.append(normed @ w.exact.T)
    grid = (_blocks(sum(outs), launch["OUT"] * launch["WARPS"]), 1, 32 * launch["WARPS"])
    template = _template(kind, BITS=bits, GROUP=group, **launch)
    call = Call("norm_qkv", template, inputs, (("y", (rows, 1, sum(outs))),), grid)
    label = _label("norm_qkv", *packing, rows, sum(outs))
    return Case(label, call, (np.concatenate(exact, -1),), 2.0)


def norm_gate_up(packing: tuple[str, int, int], rows: int, num_out: int, out: int = 0) -> Case:
    """silu(g) u of the norm of x."""
    kind, bits, group = packing
    rng = np.random.default_rng([bits, group, rows, num_out])
    num_in, launch = columns_for(rows, group), launch_of(rows, out)
    inputs, normed = _normed(rng, kind, rows, num_in)
    both: list[Numbers] = []
    for name in "gu":
        w = Packed.random(rng, (num_out, num_in), packing)
        inputs += ((f"w{name}", w.words), (f"s{name}", w.scales), (f"b{name}", w.biases))
        both.append(normed @ w.exact.T)
    gate, up = both
    grid = (_blocks(num_out, launch["OUT"] // 2 * launch["WARPS"]), 1, 32 * launch["WARPS"])
    template = _template(kind, BITS=bits, GROUP=group, **launch)
    call = Call("norm_gate_up", template, inputs, (("y", (rows, 1, num_out)),), grid)
    label = _label("norm_gate_up", *packing, rows, num_out, out)
    return Case(label, call, (gate / (1 + np.exp(-gate)) * up,), 4.0)


def qk_rope(kind: str, rows: int, heads: tuple[int, int, int], *, has_norms: bool) -> Case:
    """Queries, keys and values of one token a row, turned."""
    num_q, num_k, size = heads
    rng = np.random.default_rng([rows, *heads])
    qkv = Array.of(rng.normal(size=(rows, 1, (num_q + 2 * num_k) * size)), kind)
    norms = [Array.of(1 + 0.1 * rng.normal(size=size), kind) for _ in range(2)]
    weights = norms if has_norms else [qkv, qkv]
    places = rng.integers(0, 40000, rows)
    offset = Array.of(places, "int")
    frequency = Array.of(10000.0 ** (-np.arange(size // 2) / (size // 2)), "float")
    inputs = (
        ("qkv", qkv), ("wq", weights[0]), ("wk", weights[1]),
        ("eps", Array.of(np.array([EPS]), "float")), ("offset", offset), ("frequency", frequency),
    )  # fmt: skip
    # The angle is that of a float, whose rounding is no error of the kernel.
    angle = (places[:, None].astype(np.float32) * frequency.data).astype(np.float64)
    each = qkv.exact.reshape(rows, -1, 1, size)
    q, k, v = np.split(each, [num_q, num_q + num_k], axis=1)
    turned = [
        _turned(_headwise(part, norm.exact) if has_norms else part, angle)
        for part, norm in ((q, norms[0]), (k, norms[1]))
    ]
    template = _template(kind, HQ=num_q, HK=num_k, D=size, NORM=has_norms)
    shapes = [(rows, num, 1, size) for num in (num_q, num_k, num_k)]
    outputs = tuple(zip("qkv", shapes, strict=True))
    grid = (num_q + 2 * num_k, rows, size // 2)
    label = _label("qk_rope", kind, rows, *heads, *(["norms"] * has_norms))
    return Case(label, Call("qk_rope", template, inputs, outputs, grid), (*turned, v), 2.0)


def _headwise(part: Numbers, weight: Numbers) -> Numbers:
    return part / np.sqrt(np.mean(part**2, -1, keepdims=True) + EPS) * weight


def _turned(part: Numbers, angle: Numbers) -> Numbers:
    low, high = np.split(part, 2, axis=-1)
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    return np.concatenate([low * cos - high * sin, low * sin + high * cos], -1)


def rows_and_packings() -> list[Case]:
    """Every kernel over its table of shapes."""
    packings = [
        (kind, bits, group)
        for kind in ("bfloat", "half")
        for bits in (4, 8)
        for group in (32, 64, 128)
    ]
    few = [("bfloat", 4, 64), ("half", 8, 32), ("bfloat", 8, 128)]
    rows = (1, 3, 8, 9, 16)
    make: Callable[..., Case] = qmm_small
    cases = [make(packing, num, 42) for packing in packings for num in rows]
    cases += [make(few[0], num, out) for num in (2, 4, 5, 13) for out in (5, 32)]
    cases += [make(p, num, 42, has_residual=True) for p in few[:2] for num in (1, 9)]
    cases += [make(few[0], num, 42, out=16) for num in (1, 7, 16)]
    cases += [gemm_small(kind, num, 42, columns) for kind in ("bfloat", "half")
              for num, columns in zip(rows, (328, 520, 136, 200, 8), strict=True)]  # fmt: skip
    cases.append(gemm_small("bfloat", 16, 5, 256, out=16))
    cases += [norm_qkv(packing, num, (40, 8, 8)) for packing in few for num in rows]
    cases += [norm_gate_up(packing, num, 18) for packing in few for num in rows]
    cases.append(norm_gate_up(few[0], 11, 18, out=16))
    cases += [
        qk_rope(kind, num, heads, has_norms=has_norms)
        for kind in ("bfloat", "half")
        for has_norms in (False, True)
        for num, heads in ((3, (4, 2, 64)), (9, (2, 1, 128)))
    ]
    cases.append(qk_rope("bfloat", 1, (1, 1, 256), has_norms=True))
    return cases
