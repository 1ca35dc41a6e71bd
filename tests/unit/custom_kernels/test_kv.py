"""Keys and values on their way into blocks and out of them: forms, launches, numbered arrays."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from omlx.custom_kernels import kv_format
from omlx.custom_kernels.backend import Device
from omlx.custom_kernels.kv_format import Piece
from omlx.custom_kernels.kv_moves import KvMoves, evenly
from omlx.custom_kernels.launch import Kernel
from omlx.custom_kernels.source import Source, each_of
from tests.fakes.kernels import FakeBackend

BACKENDS = ("cuda", "metal")
TYPES = (mx.float32, mx.float16, mx.bfloat16)


def numbers(shape: Sequence[int], dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    mx.random.seed(len(shape) + shape[0])
    return mx.random.normal(shape).astype(dtype)


def same(a: mx.array, b: mx.array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(mx.array_equal(a, b).item())


def moves(backend: str) -> tuple[KvMoves, list[str]]:
    calls: list[str] = []
    return KvMoves(FakeBackend(Device(backend, "G9", "0.32.4"), calls=(calls,))), calls


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [32, 64, 96, 576])
def test_a_packed_number_is_off_by_half_a_step_of_its_32(width: int, dtype: mx.Dtype) -> None:
    x = numbers((3, 2, 7, width), dtype) * 50
    packed = kv_format.pack(x)
    assert packed.dtype == mx.uint8 and packed.shape[-1] == kv_format.packed_width(width)
    assert kv_format.unpacked_width(packed.shape[-1]) == width
    exact = np.array(x.astype(mx.float32)).astype(np.float64).reshape(3, 2, 7, -1, 32)
    back = kv_format.unpack(packed, mx.float32)
    most = np.abs(exact).max(-1, keepdims=True)
    off = np.abs(np.array(back).reshape(exact.shape) - exact)
    assert (off <= most / 254 * 1.0001).all() and off.max() > 0
    assert kv_format.unpack(packed, dtype).dtype == dtype


def test_zeros_stay_zeros_and_a_large_number_spoils_only_its_32() -> None:
    x = mx.concatenate([mx.zeros((1, 32)), mx.full((1, 32), 1e-3), mx.full((1, 32), 1e4)], axis=1)
    x[0, 32] = 300.0
    back = kv_format.unpack(kv_format.pack(x), mx.float32)
    assert back[0, :32].tolist() == [0.0] * 32
    assert back[0, 33].item() == 0.0 and back[0, 32].item() == pytest.approx(300)
    assert back[0, 64:].tolist() == pytest.approx([1e4] * 32)


def test_rows_of_which_32_is_no_divisor_have_no_packed_form() -> None:
    assert [kv_format.can_pack(width) for width in (32, 80, 128)] == [True, False, True]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("leaves", "launches"), [(2, (1, 1)), (28, (1, 1)), (30, (1, 2))])
def test_a_block_is_gathered(
    leaves: int, launches: tuple[int, int], backend: str, *, is_packed: bool
) -> None:
    buffers = [numbers((1, 2, 80, 64)) + idx for idx in range(leaves)]
    kernels, calls = moves(backend)
    found = kernels.gather(buffers, 7, 47, is_packed=is_packed)
    assert same(found, kv_format.gather(buffers, 7, 47, is_packed=is_packed))
    assert calls == ["kv_pack"] * launches[backend == "metal"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(("num", "launches"), [(1, (1, 2)), (9, (1, 2)), (20, (1, 4))])
def test_buffers_are_scattered(
    num: int, launches: tuple[int, int], backend: str, *, is_packed: bool
) -> None:
    arrays = [numbers((13, 2, 6, 64)) * idx for idx in range(1, num + 1)]
    if is_packed:
        arrays = [kv_format.pack(one) for one in arrays]
    pieces = [Piece(one, 2 if idx == 0 else 0, 6) for idx, one in enumerate(arrays)]
    kernels, calls = moves(backend)
    form = {"dtype": mx.bfloat16, "is_packed": is_packed}
    for room in (0, 5):
        calls.clear()
        found = kernels.scatter(pieces, room, **form)
        expected = kv_format.scatter(pieces, room, **form)
        assert len(found) == 13 and all(map(same, found, expected))
        assert found[0].shape == (1, 2, 6 * num - 2 + room, 64)
        assert calls == ["kv_unpack"] * launches[backend == "metal"]


def test_more_pieces_than_a_launch_takes_on_cuda_are_joined() -> None:
    pieces = [Piece(numbers((2, 1, 4, 32)) * idx, 0, 4) for idx in range(130)]
    kernels, calls = moves("cuda")
    found = kernels.scatter(pieces, 3, dtype=mx.bfloat16, is_packed=False)
    expected = kv_format.scatter(pieces, 3, dtype=mx.bfloat16, is_packed=False)
    assert all(map(same, found, expected)) and calls == ["kv_unpack"] * 2


@pytest.mark.parametrize(
    ("num", "most", "sizes"), [(5, 9, [5]), (72, 12, [12] * 6), (62, 12, [11, 11, 10, 10, 10, 10])]
)
def test_launches_share_evenly(num: int, most: int, sizes: list[int]) -> None:
    parts = evenly(range(num), most)
    assert [len(part) for part in parts] == sizes
    assert [one for part in parts for one in part] == [*range(num)]


def test_numbered_arrays_have_a_macro_each() -> None:
    assert each_of(["x", "w", "scales"]) == ""
    assert each_of(["x0", "x1", "place", "y0"]) == (
        "#define EACH_x(DO) DO(0) DO(1)\n#define EACH_y(DO) DO(0)\n"
    )


def test_kernels_of_other_numbers_of_arrays_have_other_names() -> None:
    """mlx keeps compiled code by name."""
    source = Source("kv_pack", "", "y[0] = x0[0];", "ab" * 32)
    made = [Kernel("metal", source, [f"x{i}" for i in range(num)])._source for num in (1, 2)]
    assert made[0]["name"] != made[1]["name"]
    assert made[1]["header"] == "#define EACH_x(DO) DO(0) DO(1)\n"
    plain = Kernel("metal", source, ["x", "w"])._source
    assert plain["name"] == "omlx_kv_pack_" + "ab" * 6 and plain["header"] == ""
