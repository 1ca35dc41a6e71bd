"""A model that computes next to nothing and keeps as much state a token as a large one, and the
cache that an engine would build for it, driven by the thread that makes it.

Knows nothing about what is measured.
"""

import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from omlx.cache.hashing import TokenArray
from omlx.cache.lookup import Hit
from omlx.engine.build import Assembly, assemble_loaded
from omlx.engine.config import EngineConfig
from omlx.models.load import LoadedModel
from tests.fakes import tiny

BLOCK = 256
IDENTITY = "22" * 32
HEADS, WIDTH = 8, 128


def wide_model(num_layers: int, dtype: mx.Dtype = mx.bfloat16) -> LoadedModel:
    """With 36 layers a token has the state of an 8B model with grouped attention, in bfloat16."""
    config: dict[str, Any] = {
        **tiny.CONFIGS["llama"],
        "hidden_size": 64,
        "num_hidden_layers": num_layers,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": WIDTH,
    }
    return LoadedModel(tiny.build_config(config, dtype=dtype), config, tiny.NUM_VOCAB, 0)


def random_caches(num_layers: int, num_tokens: int, period: int) -> list[KVCache]:
    """Layer caches of a row in bfloat16: random bits that repeat after `period` tokens."""
    mx.random.seed(1)
    shape = (1, HEADS, period, WIDTH)

    def one() -> mx.array:
        piece = mx.random.randint(0, 2**16, shape, dtype=mx.uint16).view(mx.bfloat16)
        array = mx.concatenate([piece] * (num_tokens // period), axis=2)
        mx.eval(array)
        return array

    return [_cache(one(), one()) for _ in range(num_layers)]


def equal_caches(num_layers: int, num_tokens: int, dtype: mx.Dtype) -> list[KVCache]:
    """The same in any type and without memory of their own: all tokens have one state."""
    mx.random.seed(1)

    def one() -> mx.array:
        token = mx.random.normal((1, HEADS, 1, WIDTH)).astype(dtype)
        array = mx.broadcast_to(token, (1, HEADS, num_tokens, WIDTH))
        mx.eval(array)
        return array

    return [_cache(one(), one()) for _ in range(num_layers)]


def _cache(keys: mx.array, values: mx.array) -> KVCache:
    cache = KVCache()
    cache.keys, cache.values, cache.offset = keys, values, keys.shape[2]
    return cache


class OpenCache:
    """A cache with an empty memory tier over a directory."""

    def __init__(self, loaded: LoadedModel, folder: Path, **config: Any) -> None:
        base = {
            "cache_dir": str(folder),
            "min_free_bytes": 0,
            "disk_bytes": 1 << 40,
            "memory_bytes": 1 << 40,
            "write_delay_s": 3600.0,
            "warm_up": False,
        }
        self.assembly: Assembly = assemble_loaded(
            EngineConfig("bench", "", **{**base, **config}),
            loaded,
            IDENTITY,
            emit=lambda _: None,
            publish=lambda _: None,
        )
        assert self.assembly.prefix is not None and self.assembly.disk is not None
        self.prefix, self.disk = self.assembly.prefix, self.assembly.disk

    def look_up(self, tokens: TokenArray) -> tuple[Hit, float]:
        """What was found, and the seconds until its arrays were there."""
        hits: list[Hit] = []
        started = time.perf_counter()
        self.prefix.look_up(tokens, hits.append)
        while not hits:
            self.assembly.inbox.run_jobs(0.5)
        return hits[0], time.perf_counter() - started

    def close(self) -> None:
        """End the I/O threads."""
        self.assembly.close(60.0)
