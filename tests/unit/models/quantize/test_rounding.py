"""Codes and scales: packed as mlx packs, exact on a grid, better than the plain range elsewhere.

Knows nothing about models.
"""

import mlx.core as mx
import numpy as np
import pytest

from omlx.models.quantize.compensate import Factor, compensated
from omlx.models.quantize.formats import AFFINE, BY_LABEL, Format
from omlx.models.quantize.rounding import pack, quantize, values


def matrix(rows: int = 24, columns: int = 128, seed: int = 0) -> mx.array:
    return mx.random.normal((rows, columns), key=mx.random.key(seed))


def inputs(columns: int = 128, count: int = 400, seed: int = 1) -> mx.array:
    """Inputs whose columns differ in size and depend on each other."""
    keys = mx.random.split(mx.random.key(seed), 3)
    x = mx.random.normal((count, columns), key=keys[0])
    mix = mx.eye(columns) + 0.1 * mx.random.normal((columns, columns), key=keys[1])
    return (x @ mix) * mx.exp(mx.random.normal((columns,), key=keys[2]))


def plain(weight: mx.array, form: Format) -> mx.array:
    arrays = mx.quantize(weight, group_size=form.group, bits=form.bits, mode=form.mode)
    return mx.dequantize(*arrays, group_size=form.group, bits=form.bits, mode=form.mode)


def output_error(weight: mx.array, other: mx.array, x: mx.array) -> float:
    return float(mx.mean(mx.square(x @ (other - weight).T)).item())


@pytest.mark.parametrize("form", AFFINE, ids=lambda form: form.label)
def test_codes_are_packed_as_mlx_unpacks_them(form: Format) -> None:
    codes = mx.random.randint(0, 2**form.bits, (6, 256), key=mx.random.key(2)).astype(mx.float32)
    shape = (6, 256 // form.group)
    found = mx.dequantize(
        pack(codes, form.bits), mx.ones(shape), mx.zeros(shape),
        group_size=form.group, bits=form.bits,
    )  # fmt: skip
    assert mx.array_equal(found, codes).item()


@pytest.mark.parametrize("form", BY_LABEL.values(), ids=lambda form: form.label)
def test_values_are_never_worse_than_the_plain_range(form: Format) -> None:
    weight, x = matrix(), inputs()
    h = mx.mean(mx.square(x), axis=0)
    ours = quantize(weight, form, dtype="float16", importance=h).values(form)
    weighted = [
        float(mx.mean(h * mx.square(one - weight)).item()) for one in (ours, plain(weight, form))
    ]
    if form.mode == "affine":
        assert weighted[0] < weighted[1]
    else:
        assert weighted[0] == weighted[1]
    quick = values(weight, form, dtype="float16", importance=h)
    assert float(mx.mean(h * mx.square(quick - weight)).item()) <= 1.01 * weighted[1]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_lies_on_a_grid_stays_exact(bits: int, dtype: str) -> None:
    form = BY_LABEL[f"{bits}/32"]
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (8, 4, 32))
    codes[..., 0], codes[..., 1] = 0, 2**bits - 1
    scale = 2.0 ** rng.integers(-6, -2, (8, 4, 1))
    weight = mx.array((codes * scale - scale * 3).reshape(8, 128).astype(np.float32))
    found = quantize(weight, form, dtype=dtype).values(form)
    assert mx.array_equal(found, weight).item()


@pytest.mark.parametrize("form", AFFINE, ids=lambda form: form.label)
def test_errors_that_are_made_good_leave_less_in_the_output(form: Format) -> None:
    weight, x = matrix(), inputs()
    factor = Factor.of(np.array(x.T @ x), num_tokens=len(x))
    packed, shown = compensated(weight, factor, form, dtype="float16")
    assert np.allclose(np.array(packed.values(form)), shown, atol=2e-3)
    h = mx.mean(mx.square(x), axis=0)
    nearest = quantize(weight, form, dtype="float16", importance=h).values(form)
    assert output_error(weight, packed.values(form), x) < output_error(weight, nearest, x)


@pytest.mark.parametrize("label", ["2/32", "3/64", "8/64"])
def test_what_inputs_lack_of_the_original_s_is_made_good(label: str) -> None:
    """Inputs that lost what others still tell of: the products come near to the original's."""
    weight, form = matrix(), BY_LABEL[label]
    original = inputs(count=4000)
    x = original + 0.3 * mx.random.normal(original.shape, key=mx.random.key(7))
    x[:, 5] = 0.0
    moments, missing = np.array(x.T @ x), np.array((original - x).T @ x)
    errors: list[float] = []
    for what in (None, missing):
        factor = Factor.of(moments, num_tokens=len(x), missing=what)
        packed, _ = compensated(weight, factor, form, dtype="float16")
        off = x @ packed.values(form).T - original @ weight.T
        errors.append(float(mx.mean(mx.square(off)).item()))
    assert errors[1] < 0.9 * errors[0]
    nothing = Factor.of(moments, num_tokens=len(x), missing=np.zeros_like(missing))
    plainly = Factor.of(moments, num_tokens=len(x))
    first, second = (
        compensated(weight, factor, form, dtype="float16")[1] for factor in (nothing, plainly)
    )
    assert np.array_equal(first, second)


@pytest.mark.parametrize("count", [40, 4000])
def test_few_inputs_are_not_overfitted(count: int) -> None:
    """Judged by other inputs of the same kind, compensation is no worse than the nearest values."""
    weight, form = matrix(), BY_LABEL["3/64"]
    x = inputs(count=4400)
    seen, others = x[:count], x[4000:]
    factor = Factor.of(np.array(seen.T @ seen), num_tokens=count)
    packed, _ = compensated(weight, factor, form, dtype="float16")
    h = mx.mean(mx.square(seen), axis=0)
    nearest = quantize(weight, form, dtype="float16", importance=h).values(form)
    ratio = output_error(weight, packed.values(form), others) / output_error(
        weight, nearest, others
    )
    assert ratio < (1.0 if count > 1000 else 1.05)


@pytest.mark.parametrize("label", ["2/32", "4/64", "mxfp4"])
def test_constant_and_huge_rows_stay_finite(label: str) -> None:
    form = BY_LABEL[label]
    weight = mx.concatenate([mx.zeros((1, 128)), mx.full((1, 128), 3.5), 1e4 * matrix(2)])
    found = quantize(weight, form, dtype="float16").values(form)
    assert mx.all(mx.isfinite(found)).item()
    assert mx.array_equal(found[0], weight[0]).item()
    if form.mode == "affine":
        assert mx.allclose(found[1], weight[1], rtol=1e-3).item()
        factor = Factor.of(np.zeros((128, 128), np.float32), num_tokens=1)
        _, shown = compensated(weight, factor, form, dtype="float16")
        assert np.isfinite(shown).all()


def test_stacked_matrices_are_rounded_each_by_its_own_inputs() -> None:
    weight = mx.stack([matrix(seed=1), matrix(seed=2)])
    form = BY_LABEL["3/64"]
    h = mx.stack([mx.arange(1.0, 129.0), mx.ones((128,))])[:, None, :]
    found = quantize(weight, form, dtype="float16", importance=h).values(form)
    for at in range(2):
        alone = quantize(weight[at], form, dtype="float16", importance=h[at, 0])
        assert mx.array_equal(found[at], alone.values(form)).item()
