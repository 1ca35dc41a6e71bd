"""The shim itself: rounding, lanes, matrices, threads that don't meet, address spaces, limits."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shim import build, sources
from tests.shim.calls import Array, Call, KernelError, Library, race
from tests.shim.sources import Files

HEAD = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
PROBES = {
    "round": "y[thread_index_in_threadgroup] = T(x[thread_index_in_threadgroup]);",
    "lanes": """
const uint lane = thread_index_in_simdgroup;
const float mine = x[thread_index_in_threadgroup];
device T* to = y + thread_index_in_threadgroup * 4;
to[0] = simd_sum(mine);
to[1] = simd_max(mine);
to[2] = simd_shuffle_xor(mine, ushort(5));
to[3] = simd_broadcast(mine, ushort(7)) + simd_shuffle(mine, ushort((lane + 1) % 32));
""",
    "matrix": """
threadgroup T part[64];
for (uint i = thread_index_in_simdgroup; i < 64; i += 32) part[i] = T(x[i]);
simdgroup_barrier(mem_flags::mem_threadgroup);
simdgroup_matrix<T, 8, 8> a, b;
simdgroup_float8x8 c = make_filled_simdgroup_matrix<float, 8>(2.0f);
simdgroup_load(a, part, 8);
simdgroup_load(b, part, 8, ulong2(0), TRANSPOSE);
simdgroup_multiply_accumulate(c, a, b, c);
threadgroup float out[64];
simdgroup_store(c, out, 8);
simdgroup_barrier(mem_flags::mem_threadgroup);
for (uint i = thread_index_in_simdgroup; i < 64; i += 32) y[i] = T(out[i]);
""",
    "apart": """
if (thread_index_in_threadgroup < 40) threadgroup_barrier(mem_flags::mem_none);
y[thread_index_in_threadgroup] = 0;
""",
    "elsewhere": """
if (thread_index_in_simdgroup < 3)
  y[0] = simd_sum(1.0f);
else
  y[1] = simd_sum(2.0f);
""",
    "large": """
threadgroup float4 part[2049];
part[thread_index_in_threadgroup] = 0;
y[0] = part[0].x;
""",
    "unwritten": """
threadgroup float part[64];
y[thread_index_in_threadgroup] = part[63 - thread_index_in_threadgroup];
""",
    "beyond": "y[thread_index_in_threadgroup] = x[thread_index_in_threadgroup + 64];",
    "grid": "if (thread_index_in_threadgroup == 0) y[0] = threadgroup_position_in_grid.x;",
    "swizzles": """
const float4 v = *(const device float4*)x;
const half2 pair = as_type<half2>(uint(0xC0003C00));
*(device float4*)y = v.wzyx + float(pair.x) * v.xxyy + float(pair.y);
""",
}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac runs them itself")
FILES = Files({f"metal/{name}.metal": f"{HEAD}// body\n{text}" for name, text in PROBES.items()})
NUMBERS = np.random.default_rng(1).normal(size=64)
TIES = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, np.inf, -0.0,
                 3.4e38, np.nan, 65519.0, 1e-7, *NUMBERS[10:]])  # fmt: skip


def probe(
    name: str, kind: str = "float", x: Any = NUMBERS, *, num: int = 64, blocks: int = 1
) -> Call:
    inputs = (("x", Array.of(x, "float")),)
    return Call(name, (("T", kind),), inputs, (("y", (num,)),), (blocks, 1, 64))


CALLS = {
    "round to bfloat": probe("round", "bfloat", TIES),
    "round to half": probe("round", "half", TIES),
    "lanes": probe("lanes", num=256),
    **{
        f"matrix {kind} {is_transposed}": Call(
            "matrix", (("T", kind), ("TRANSPOSE", is_transposed)),
            (("x", Array.of(NUMBERS, "float")),), (("y", (64,)),), (1, 1, 32),
        )
        for kind in ("bfloat", "half", "float")
        for is_transposed in (False, True)
    },
    "swizzles": Call("swizzles", (("T", "float"),), (("x", Array.of(NUMBERS, "float")),),
                     (("y", (4,)),), (1, 1, 1)),
    **{name: probe(name) for name in ("apart", "elsewhere", "large", "unwritten", "beyond")},
    "grid": probe("grid", blocks=2),
}  # fmt: skip


@pytest.fixture(scope="module")
def programs() -> list[str]:
    instances = {call.instance.symbol(FILES): (FILES, call.instance) for call in CALLS.values()}
    return [sources.program(instances.values())]


@pytest.fixture(scope="module")
def library(programs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(build.library(programs, tmp_path_factory.mktemp("shim")))


def result(library: Library, name: str) -> np.ndarray[Any, Any]:
    (y,) = library.run(CALLS[name], FILES)
    return y.exact


@pytest.mark.parametrize("kind", ["bfloat", "half"])
def test_numbers_are_rounded_to_the_nearest_even_one(library: Library, kind: str) -> None:
    with np.errstate(over="ignore"):
        expected = Array.of(TIES, kind).exact
    np.testing.assert_array_equal(result(library, f"round to {kind}"), expected)
    ties = {"bfloat": [1, 1 + 2.0**-6], "half": [1 + 2.0**-8, 1 + 3 * 2.0**-8]}
    np.testing.assert_array_equal(expected[:2], ties[kind])


def test_lanes_see_each_other(library: Library) -> None:
    got = result(library, "lanes").reshape(2, 32, 4)
    x = NUMBERS.astype(np.float32).reshape(2, 32).astype(np.float64)
    lanes = np.arange(32)
    np.testing.assert_allclose(got[..., 0], x.sum(1, keepdims=True).repeat(32, 1), rtol=1e-5)
    np.testing.assert_array_equal(got[..., 1], x.max(1, keepdims=True).repeat(32, 1))
    np.testing.assert_array_equal(got[..., 2], x[:, lanes ^ 5])
    np.testing.assert_allclose(got[..., 3], x[:, [7]] + x[:, (lanes + 1) % 32], rtol=1e-5)


@pytest.mark.parametrize("kind", ["bfloat", "half", "float"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_matrices_multiply(library: Library, kind: str, is_transposed: bool) -> None:
    a = Array.of(NUMBERS, kind).exact.reshape(8, 8)
    expected = a @ (a.T if is_transposed else a) + 2
    got = result(library, f"matrix {kind} {is_transposed}").reshape(8, 8)
    np.testing.assert_allclose(got, expected, rtol=0.01, atol=0.02)


def test_vectors_have_swizzles(library: Library) -> None:
    v = NUMBERS[:4].astype(np.float32)
    np.testing.assert_allclose(
        result(library, "swizzles"), v[::-1] + v[[0, 0, 1, 1]] - 2, rtol=1e-5
    )


def test_threads_that_dont_meet_are_named(library: Library) -> None:
    with pytest.raises(
        KernelError, match=r"thread 0 waits at .*apart.metal:6, but thread 40 ended"
    ):
        result(library, "apart")
    with pytest.raises(KernelError, match=r"waits at .*elsewhere.metal:7.* thread 3 waits at .*:9"):
        result(library, "elsewhere")


def test_threadgroup_memory_has_a_limit(library: Library) -> None:
    with pytest.raises(KernelError, match="more than 32768 bytes of threadgroup memory"):
        result(library, "large")


def test_threadgroup_memory_is_not_zero(library: Library) -> None:
    assert np.isnan(result(library, "unwritten")).all()


def test_a_read_beyond_an_array_is_an_error(library: Library) -> None:
    with pytest.raises(KernelError, match=" 0 bytes beyond the end of argument 0"):
        result(library, "beyond")


def test_threadgroups_are_watched_for_races(programs: list[str], tmp_path: Path) -> None:
    program = build.racer(programs, tmp_path)
    _, report = race(program, CALLS["grid"], FILES, tmp_path)
    assert "data race" in report and "grid.metal:5" in report
    _, report = race(program, CALLS["lanes"], FILES, tmp_path)
    assert "WARNING" not in report


def test_a_pointer_to_another_space_doesnt_compile(tmp_path: Path) -> None:
    text = f"{HEAD}template <typename T> T first(const threadgroup T* from) {{ return from[0]; }}\n"
    files = Files({"metal/mixed.metal": f"{text}// body\ny[0] = first(x);\n"})
    program = sources.program([(files, probe("mixed").instance)])
    with pytest.raises(AssertionError, match="no matching function"):
        build.library([program], tmp_path)
