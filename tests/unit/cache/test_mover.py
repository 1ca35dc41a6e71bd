"""Blocks that kernels move, and blocks in 8 bits: the same as by plain mlx, and told apart."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from omlx.cache.codec import LOSSY_FORM, Codec
from omlx.cache.hashing import compute_root_hash
from omlx.cache.mover import Mover
from omlx.custom_kernels.records import Verdict, read_records
from omlx.custom_kernels.selection import Selection
from tests.fakes.kernels import FakeBackend, records_of
from tests.unit.cache.test_codec import live_caches, random_layers, same

WIDTHS = [(64, 32), (64, 32)]
COUNTS = [20, 20, 7]
KV = ("kv_pack", "kv_unpack")


def mover(
    tmp_path: Path, *, is_packed: bool = False, speedup: float = 2.0, **record: object
) -> tuple[Mover, list[str], Selection]:
    """One whose kernels are verified, unless `record` says otherwise, and what it launches."""
    calls: list[str] = []
    backend = FakeBackend(calls=(calls,))
    path = records_of(tmp_path / "kernels.json", backend, KV, speedup=speedup, **record)
    selection = Selection(backend, read_records(path))
    return Mover(selection, is_packed=is_packed), calls, selection


def rows(dtype: mx.Dtype = mx.bfloat16) -> list[KVCache]:
    return live_caches(random_layers(sum(COUNTS), WIDTHS, dtype))


@pytest.mark.parametrize("is_packed", [False, True])
def test_kernels_move_what_plain_mlx_moves(tmp_path: Path, *, is_packed: bool) -> None:
    by_kernels, calls, _ = mover(tmp_path, is_packed=is_packed)
    fast = Codec.from_caches(rows(), by_kernels)
    plain = Codec.from_caches(rows(), Mover(is_packed=is_packed))
    made = [one.pack(rows(), 0, COUNTS, is_own=True) for one in (fast, plain)]
    # Two groups, of which the last block is short and stays with plain mlx.
    assert calls == ["kv_pack"] * 4
    for a, b in zip(*made, strict=True):
        assert a.count == b.count and all(map(same, a.arrays, b.arrays))
    parts = [(payload, min(payload.count, 19 + idx)) for idx, payload in enumerate(made[0])]
    calls.clear()
    restored = [one.restore(parts) for one in (fast, plain)]
    assert calls == ["kv_unpack"] * 2
    for a, b in zip(*restored, strict=True):
        assert a.offset == b.offset == 19 + 20 + 7
        assert same(a.keys, b.keys) and same(a.values, b.values)
        assert a.keys.shape[2] == 256


def test_views_are_left_to_plain_mlx(tmp_path: Path) -> None:
    by_kernels, calls, _ = mover(tmp_path)
    codec = Codec.from_caches(rows(), by_kernels)
    assert len(codec.pack(rows(), 0, COUNTS)) == 3
    assert calls == []


@pytest.mark.parametrize(
    "record",
    [
        {"speedup": 0.9},
        {"verdict": Verdict.FAILED, "reason": "an error of 3"},
    ],
    ids=["slower", "failed"],
)
def test_a_kernel_that_is_slower_or_failed_moves_nothing(
    tmp_path: Path, record: dict[str, object]
) -> None:
    by_kernels, calls, selection = mover(tmp_path, **record)
    codec = Codec.from_caches(rows(), by_kernels)
    assert by_kernels.kernels(codec.forms, 256) == ()
    assert {*selection.lacking} == (set() if "speedup" in record else {*KV})
    (payload,) = codec.pack(rows(), 0, [40], is_own=True)
    codec.restore([(payload, 40)])
    assert calls == []


def test_a_model_says_which_kernels_move_its_blocks(tmp_path: Path) -> None:
    by_kernels, _, selection = mover(tmp_path)

    def kernels(caches: list[Any], one: Mover = by_kernels) -> tuple[str, ...]:
        return one.kernels(Codec.from_caches(caches, one).forms, 256)

    assert kernels(rows()) == KV
    assert kernels(rows(mx.float32)) == kernels(rows(), Mover()) == ()
    ring: Any = RotatingKVCache(32)
    ring.update_and_fetch(*random_layers(40, [(64, 64)], mx.bfloat16)[0])
    assert kernels([ring]) == ("kv_unpack",), "a ring is put in order by plain mlx"
    assert selection.lacking == {}


def test_blocks_in_8_bits_are_lossy_smaller_and_of_another_root() -> None:
    caches = rows()
    exact, packed = Codec.from_caches(caches), Codec.from_caches(caches, Mover(is_packed=True))
    assert "form" not in exact.layout() and packed.layout()["form"] == LOSSY_FORM
    assert compute_root_hash("ab", exact.layout()) != compute_root_hash("ab", packed.layout())
    assert packed.bytes_per_token == exact.bytes_per_token * 36 // 64
    payloads = packed.pack(caches, 0, COUNTS)
    for payload in payloads:
        shapes = [(spec.dtype, spec.shape) for spec in packed.specs(payload.count)]
        assert shapes == [("U8", array.shape) for array in payload.arrays]
    back = packed.restore([(payload, payload.count) for payload in payloads])
    for cache, live in zip(back, caches, strict=True):
        assert cache.keys.dtype == mx.bfloat16
        found, true = (
            np.array(one.keys_and_values()[0].astype(mx.float32)) for one in (cache, live)
        )
        off = np.abs(found - true).max()
        assert 0 < off < 0.03 * np.abs(true).max()


def test_types_that_are_packed_have_roots_of_their_own() -> None:
    """The bytes look the same; what they stand for doesn't."""
    layouts = {
        str(Codec.from_caches(rows(dtype), Mover(is_packed=True)).layout())
        for dtype in (mx.float32, mx.float16, mx.bfloat16)
    }
    assert len(layouts) == 3


def test_rows_without_a_packed_form_stay_as_they_are() -> None:
    caches = live_caches(random_layers(10, [(24, 8)]))
    exact, packed = Codec.from_caches(caches), Codec.from_caches(caches, Mover(is_packed=True))
    assert packed.layout() == exact.layout() and packed.specs(10) == exact.specs(10)
    (payload,) = packed.pack(caches, 0, [10])
    (back,) = packed.restore([(payload, 10)])
    assert same(back.keys_and_values()[0], caches[0].keys_and_values()[0])


def test_packed_bytes_go_out_and_in_again() -> None:
    codec = Codec.from_caches(rows(), Mover(is_packed=True))
    for zero_copy in (True, False):
        codec.is_zero_copy = zero_copy
        (payload,) = codec.pack(rows(), 0, [12])
        landing = codec.allocate(12, range(len(codec.specs(12))))
        for (spec, target), view in zip(landing.sections(), codec.read_views(payload), strict=True):
            assert len(target) == len(view) == spec.nbytes
            target[:] = view
        assert all(map(same, landing.payload().arrays, payload.arrays))
