"""Landings: arrays that can be read into, whose memory nobody has touched before."""

import resource

import mlx.core as mx
import numpy as np
import pytest

from omlx.cache.landing import MX_DTYPES, Landing, as_bytes, blank
from omlx.storage.record import SectionSpec


@pytest.mark.parametrize("shape", [(3,), (2, 5), (1, 2, 3, 4), (72, 8, 1, 1)])
@pytest.mark.parametrize("dtype", list(MX_DTYPES))
def test_a_blank_array_is_what_is_written_into_it(dtype: str, shape: tuple[int, ...]) -> None:
    spec = SectionSpec("kv.0", dtype, shape)
    array = blank(spec)
    assert (array.shape, array.dtype, array.nbytes) == (shape, MX_DTYPES[dtype], spec.nbytes)
    wanted = (mx.arange(array.size) - 2).astype(array.dtype).reshape(shape)
    as_bytes(array).reshape(-1)[:] = as_bytes(wanted).reshape(-1)
    assert mx.array_equal(array, wanted).item()
    assert mx.array_equal(array * 1, wanted).item()


def test_a_landing_touches_no_memory() -> None:
    """Guards what mlx does when it loads a file: `mx.zeros` would write to every page."""
    num_bytes = 1 << 26
    mx.clear_cache()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    landing = Landing([SectionSpec("kv.0", "F32", (num_bytes // 4,))], 1, zero_copy=True)
    landing.sections()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert after - before < num_bytes / resource.getpagesize() / 8


@pytest.mark.parametrize("zero_copy", [True, False])
def test_what_is_left_out_takes_no_memory(*, zero_copy: bool) -> None:
    spec = SectionSpec("window.0", "F16", (2, 3))
    landing = Landing([None, spec, None], 3, zero_copy=zero_copy)
    ((found, buffer),) = landing.sections()
    assert found == spec
    np.frombuffer(buffer, np.uint8)[:] = 0x3C  # of a float16: a little more than one
    payload = landing.payload()
    assert [a is None for a in payload.arrays] == [True, False, True]
    assert payload.nbytes == spec.nbytes
    assert payload.arrays[1].tolist() == [[1.05859375] * 3] * 2
