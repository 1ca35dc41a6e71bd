"""Sweeps over a rounded matrix: the weighted error falls, codes stay codes, grids stay exact.

Knows nothing about models.
"""

import mlx.core as mx
import numpy as np
import pytest

from omlx.models.quantize.refine import Codes, Floats, in_type, refine

COLUMNS, ROWS, GROUP = 128, 24, 32


def moments(seed: int = 1) -> Floats:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, COLUMNS)) @ (
        np.eye(COLUMNS) + rng.normal(size=(COLUMNS, COLUMNS)) / 9
    )
    return (x.T @ x / 400 + 0.05 * np.eye(COLUMNS)).astype(np.float32)


def nearest(wanted: Floats, bits: int) -> Codes:
    """The plain range of each group, and the nearest codes."""
    groups = wanted.reshape(-1, GROUP, ROWS)
    low, high = groups.min(1), groups.max(1)
    scales = in_type(((high - low) / (2**bits - 1)).astype(np.float32), mx.float16)
    biases = in_type(low, mx.float16)
    safe = np.where(scales == 0, np.float32(1), scales)
    codes = np.clip(np.rint((groups - biases[:, None]) / safe[:, None]), 0, 2**bits - 1)
    return Codes(codes.reshape(wanted.shape).astype(np.float32), scales, biases)


def weighted(wanted: Floats, found: Codes, by: Floats) -> float:
    errors = wanted - found.values()
    return float(np.einsum("cr,cd,dr->", errors, by, errors))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_error_of_products_falls(bits: int) -> None:
    wanted = np.random.default_rng(0).normal(size=(COLUMNS, ROWS)).astype(np.float32)
    found, by = nearest(wanted, bits), moments()
    before = weighted(wanted, found, by)
    refine(wanted, found, by, bits=bits, dtype=mx.float16)
    assert weighted(wanted, found, by) < 0.6 * before
    assert np.array_equal(found.codes, np.rint(found.codes))
    assert found.codes.min() >= 0 and found.codes.max() <= 2**bits - 1
    for lines in (found.scales, found.biases):
        assert np.array_equal(in_type(lines, mx.float16), lines)


def test_where_columns_have_nothing_to_do_with_each_other_codes_are_the_nearest() -> None:
    wanted = np.random.default_rng(0).normal(size=(COLUMNS, ROWS)).astype(np.float32)
    found = nearest(wanted, 3)
    refine(wanted, found, np.eye(COLUMNS, dtype=np.float32), bits=3, dtype=mx.float32)
    scales, biases = (np.repeat(lines, GROUP, axis=0) for lines in (found.scales, found.biases))
    best = np.clip(np.rint((wanted - biases) / scales), 0, 7)
    assert np.array_equal(best, found.codes)


def test_what_lies_on_a_grid_stays() -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (COLUMNS, ROWS)).astype(np.float32)
    codes[::GROUP], codes[1::GROUP] = 0, 15
    scales = np.full((COLUMNS // GROUP, ROWS), 2.0**-5, np.float32)
    wanted = Codes(codes, scales, -3 * scales).values()
    found = nearest(wanted, 4)
    refine(wanted, found, moments(), bits=4, dtype=mx.float16)
    assert np.array_equal(found.values(), wanted)


def test_columns_and_rows_of_nothing_stay_finite() -> None:
    wanted = np.zeros((COLUMNS, ROWS), np.float32)
    wanted[:, 1] = 3.5
    found = nearest(wanted, 2)
    refine(wanted, found, np.zeros((COLUMNS, COLUMNS), np.float32), bits=2, dtype=mx.float16)
    assert np.array_equal(found.values(), wanted)
    refine(wanted, found, moments(), bits=2, dtype=mx.float16)
    assert np.allclose(found.values(), wanted, rtol=1e-3)
