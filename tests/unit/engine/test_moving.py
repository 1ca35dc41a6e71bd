"""What moves an engine's blocks on a GPU: verified kernels, or plain mlx and a warning."""

import logging
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.custom_kernels.records import Verdict
from omlx.engine.caching import codec_of
from omlx.engine.config import EngineConfig
from omlx.errors import ModelError
from tests.fakes.kernels import FakeBackend, records_of
from tests.unit.cache.test_codec import live_caches, random_layers

KV = ("kv_pack", "kv_unpack")


def config(records: Path, **more: object) -> EngineConfig:
    return EngineConfig("tiny", "", kernel_records=str(records), **more)


def test_verified_kernels_move_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeBackend(calls=([],))
    records = records_of(tmp_path / "kernels.json", backend)
    caches = live_caches(random_layers(300, [(64, 64)], mx.bfloat16))
    codec, kernels = codec_of(config(records), caches, backend)
    assert kernels == KV and caplog.records == []
    # Both are compiled before a request needs them, the second for few blocks and for many.
    assert backend.calls[0] == ["kv_pack", "kv_unpack", "kv_unpack"]
    (payload,) = codec.pack(caches, 0, [256], is_own=True)
    (back,) = codec.restore([(payload, 256)])
    assert mx.array_equal(back.keys, caches[0].keys[:, :, :256]).item()
    assert backend.calls[0][-2:] == [*KV]


@pytest.mark.parametrize("verdict", [None, Verdict.FAILED])
def test_lacking_kernels_are_said_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, verdict: Verdict | None
) -> None:
    backend, records = FakeBackend(calls=([],)), tmp_path / "kernels.json"
    if verdict is not None:
        records_of(records, backend, verdict=verdict, reason="an error of 3")
    caches = live_caches(random_layers(300, [(64, 64)], mx.bfloat16))
    with caplog.at_level(logging.WARNING, logger="omlx.kernels"):
        codec, kernels = codec_of(config(records), caches, backend)
    assert kernels == ()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "to fix it: omlx kernel build kv_pack kv_unpack" in said
    codec.pack(caches, 0, [256], is_own=True)
    assert backend.calls[0] == []
    with pytest.raises(ModelError, match="kernels.require asks for"):
        codec_of(config(records, require_kernels=True), caches, backend)


def test_float32_needs_no_kernels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caches = live_caches(random_layers(300, [(64, 64)]))
    records = tmp_path / "kernels.json"
    _, kernels = codec_of(config(records, require_kernels=True), caches, FakeBackend())
    assert kernels == () and caplog.records == []
