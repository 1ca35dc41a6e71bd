"""What the tests of single cases share: prompts, comparisons, a model that tells what is in its
state, and file systems that are slow or fail where a test says so."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from omlx.cache.io import DiskTier
from omlx.cache.prefix import PrefixCache
from omlx.storage.fs import RealFileSystem
from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness

B = 32  # block size; the prefill chunk is two of them
CLOSE = 1e-3  # top-2 logit gap below which batch numerics may choose the other token
ATTENTION = "llama"
WINDOWS = ["gemma3_text", "gpt_oss"]
STATES = ["qwen3_next", "mamba2", "falcon_h1", "lfm2"]


def start(name: str, path: Path, **config: Any) -> Harness:
    """An engine around a tiny model of that architecture; its cache is below `path`."""
    sizes = {"block_size": B, "prefill_chunk": 2 * B, "write_delay_s": 0.0}
    return Harness(tiny.build(name), path / "cache", **(sizes | config))


def prompt(length: int, seed: int = 1) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


def assert_same(warm: Answer, cold: Answer) -> None:
    """Equal tokens, and equal logits bit for bit."""
    assert warm.failed is None and cold.failed is None
    assert warm.tokens == cold.tokens
    assert len(warm.logits) == len(cold.logits) > 0
    for a, b in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(warm: Answer, cold: Answer) -> None:
    """The same, but for the rounding of pieces of other sizes."""
    assert warm.failed is None and cold.failed is None
    np.testing.assert_allclose(warm.logits[0], cold.logits[0], atol=2e-3)
    assert_greedy(warm.tokens, cold)


def assert_greedy(got: Sequence[int], solo: Answer) -> None:
    """Equal, or different from a token on at which the two best logits are closer than CLOSE."""
    for i, (a, b) in enumerate(zip(got, solo.tokens, strict=True)):
        if a != b:
            best = np.sort(solo.logits[i])[-2:]
            assert best[1] - best[0] < CLOSE, f"token {i} differs"
            return


def prefix_of(harness: Harness) -> PrefixCache:
    """The prefix cache of a running engine."""
    assembly = harness.engine._assembly
    assert assembly is not None and assembly.prefix is not None
    return assembly.prefix


def disk_of(harness: Harness) -> DiskTier:
    """The disk tier of a running engine."""
    assembly = harness.engine._assembly
    assert assembly is not None and assembly.disk is not None
    return assembly.disk


def settle(harness: Harness) -> None:
    """Wait until what is queued for the disk is there."""
    assert disk_of(harness).drain(30.0)


def block_files(path: Path) -> dict[int, Path]:
    """The files of full blocks of the only chain below `path`, by their place in it."""
    by_parent = {p.name.split(".")[1]: p for p in path.rglob(f"*.{B}.safetensors")}
    names = {p.name[:16] for p in by_parent.values()}
    (parent,) = [parent for parent in by_parent if parent not in names]
    chain: dict[int, Path] = {}
    while parent in by_parent:
        chain[len(chain)] = by_parent[parent]
        parent = by_parent[parent].name[:16]
    return chain


class Counting:
    """A model that counts the tokens it is given."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        self.num_tokens += inputs.size
        return self._model(inputs, cache=cache)


class Interrupting:
    """A model that calls `act` in its call number `at`, once what came before is computed."""

    def __init__(self, model: Any, at: int, act: Callable[[], None]) -> None:
        self._model = model
        self._at = at
        self._act = act
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        self.num_calls += 1
        if self.num_calls == self._at:
            self._act()
        return self._model(inputs, cache=cache)


class Telling:
    """A model that answers with the rarest marker in its state, so a foreign one shows at once.

    Tokens from `FIRST_MARKER` on are markers; all layers keep the same, the last one answers.
    """

    FIRST_MARKER = 256
    NUM_MARKERS = 256

    def __init__(self, *, num_layers: int = 1, num_heads: int = 1) -> None:
        self.layers = [None] * num_layers
        self._num_heads = num_heads

    def make_cache(self) -> list[KVCache]:
        return [KVCache() for _ in self.layers]

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        ids = mx.arange(self.FIRST_MARKER, self.FIRST_MARKER + self.NUM_MARKERS)
        own = (inputs[:, :, None] == ids).astype(mx.float16)
        before = mx.zeros((inputs.shape[0], 1, self.NUM_MARKERS))
        values = mx.repeat(own[:, None], self._num_heads, axis=1)
        for layer in cache or ():
            _, held = layer.update_and_fetch(values[..., :8], values)
            total = held[:, -1].astype(mx.float32).sum(axis=1, keepdims=True)
            before = total - own.astype(mx.float32).sum(axis=1, keepdims=True)
        counts = before + mx.cumsum(own.astype(mx.float32), axis=1)
        rarest = mx.where(counts > 0, 1e6 - counts, 0.0)
        return mx.concatenate([mx.zeros((*inputs.shape, self.FIRST_MARKER)), rarest], axis=2)


class FailingReads(RealFileSystem):
    """Real files of which those that `spoil` picks can be seen, but fail when they are read."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how
        self._fds: set[int] = set()
        self.spoil: Callable[[Path], bool] = lambda path: False
        self.num_failed = 0

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        is_bad = not flags & os.O_WRONLY and self.spoil(path)
        if is_bad and self._how == "missing":
            self.num_failed += 1
            path.unlink()
        fd = super().open(path, flags, mode)
        if is_bad:
            self._fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._fds.discard(fd)
        super().close(fd)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if fd not in self._fds:
            return super().preadv(fd, buffers, offset)
        self.num_failed += 1
        if self._how == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return 0  # the end of the file comes early


class FailingWrites(RealFileSystem):
    """Real files that can't be written once so many are complete, as long as `is_broken`."""

    def __init__(self, num_good: int, error: int) -> None:
        super().__init__()
        self._num_left = num_good
        self._error = error
        self.is_broken = True
        self.num_failed = 0

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._num_left -= target.suffix == ".safetensors"

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        if self.is_broken and self._num_left <= 0:
            self.num_failed += 1
            raise OSError(self._error, os.strerror(self._error))
        return super().writev(fd, buffers)


class SlowWrites(RealFileSystem):
    """Real files that take so many bytes a second."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self._bytes_per_s = bytes_per_s

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        written = super().writev(fd, buffers)
        time.sleep(written / self._bytes_per_s)
        return written


def use_file_system(monkeypatch: pytest.MonkeyPatch, fs: RealFileSystem) -> None:
    """Let engines that start from now on keep their blocks on this file system."""
    monkeypatch.setattr("omlx.engine.build.PacedFileSystem", lambda pace: fs)
