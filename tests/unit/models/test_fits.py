"""M13: what is larger than memory is refused from sizes alone. Files here are sparse."""

import os
from pathlib import Path

import psutil
import pytest

from omlx.models.fits import fit, split, why_too_large
from omlx.models.locate import ModelEntry, discover
from tests.unit.models.tiny import write_json

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
}
TOKEN_BYTES = 2 * 8 * 128 * 2 * 32


def sparse_model(folder: Path, *sizes: int, config: dict[str, object] = CONFIG) -> Path:
    """A model whose index names weight files of these sizes, of which nothing is on disk."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    names = [f"model-{index}.safetensors" for index in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        (folder / name).touch()
        os.truncate(folder / name, size)
    write_json(folder / "model.safetensors.index.json", {"weight_map": {n: n for n in names}})
    return folder


def entry_of(folder: Path) -> ModelEntry:
    (entry,) = discover([folder]).models
    return entry


def test_case_m13_ten_times_the_memory(tmp_path: Path) -> None:
    memory = psutil.virtual_memory().total
    half = 5 * memory
    entry = entry_of(sparse_model(tmp_path / "huge", half, half))
    assert entry.weight_bytes == 10 * memory
    assert sum(file.stat().st_blocks for file in entry.path.iterdir()) * 512 < 10**6
    reason = why_too_large(entry, memory)
    assert reason is not None
    assert f"({10 * memory:,} bytes)" in reason and f"({memory:,} bytes)" in reason
    small = entry_of(sparse_model(tmp_path / "small", 1000))
    assert split([entry, small], memory) == ([small], {"huge": reason})
    assert split([entry, small], None) == ([entry, small], {})


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_edge(tmp_path: Path, extra: int) -> None:
    entry = entry_of(sparse_model(tmp_path / "m", 10**9 + extra))
    assert (why_too_large(entry, 10**9) is None) == (extra <= 0)


def test_weights_and_state(tmp_path: Path) -> None:
    entry = entry_of(sparse_model(tmp_path / "m", 8 * 10**9))
    found = fit(entry, 10 * 10**9, context=8192)
    assert found.needed_bytes == 8 * 10**9 + 8192 * TOKEN_BYTES
    assert found.is_fitting
    assert found.max_context == 2 * 10**9 // TOKEN_BYTES
    exact = fit(entry, found.needed_bytes, context=8192)
    assert exact.is_fitting and exact.max_context == 8192
    assert not fit(entry, found.needed_bytes - 1, context=8192).is_fitting
    assert fit(entry, 7 * 10**9).max_context == 0
    assert fit(entry, 10**12, context=10**6).context == 131_072
    assert fit(entry, 10**12).max_context == 131_072


def test_a_configuration_that_does_not_say(tmp_path: Path) -> None:
    entry = entry_of(sparse_model(tmp_path / "m", 1000, config={"model_type": "x"}))
    found = fit(entry, 2000)
    assert (found.needed_bytes, found.max_context, found.is_fitting) == (1000, None, True)
