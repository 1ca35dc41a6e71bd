"""Tiny models of each kind of layers load, and keep of their tokens what the kind says."""

from pathlib import Path

import pytest

from omlx.bench.kinds import KINDS
from omlx.cache.codec import Codec
from omlx.models.arch.tiny import NUM_VOCAB, WINDOW, Kind, write_tiny
from omlx.models.config import context_window, read_json
from omlx.models.load import load, probe_caches
from omlx.models.text import TextModel
from omlx.models.weights import step_weights


def test_the_bench_names_all_kinds() -> None:
    assert tuple(kind.value for kind in Kind) == KINDS


@pytest.mark.parametrize("kind", Kind)
def test_a_kind(kind: Kind, tmp_path: Path) -> None:
    folder = write_tiny(kind, tmp_path / kind, seed=1)
    assert context_window(read_json(folder / "config.json")) == WINDOW
    loaded = load(folder)
    assert loaded.num_vocab == NUM_VOCAB
    assert 0 < step_weights(folder).bytes_of(1) <= loaded.weight_bytes
    codec = Codec.from_caches(probe_caches(loaded.model))
    has_window = any(leaf.window for leaf in codec.leaves)
    assert has_window == (kind is Kind.WINDOW)
    assert codec.has_states == (kind in (Kind.STATE, Kind.HYBRID))
    assert codec.has_blocks == (kind is not Kind.STATE)


def test_a_seed_gives_the_same_weights(tmp_path: Path) -> None:
    made = [
        write_tiny(Kind.STATE, tmp_path / name, seed=seed) / "model.safetensors"
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, second, third = (path.read_bytes() for path in made)
    assert first == second != third


def test_whatever_it_says_is_text_and_a_character_is_a_token(tmp_path: Path) -> None:
    text = TextModel.load(write_tiny(Kind.STATE, tmp_path / "a", seed=1))
    said = [text.decode([token_id]) for token_id in range(NUM_VOCAB - 1)]
    assert all(piece and "\ufffd" not in piece for piece in said)
    assert len(text.encode("Hello, world 42!\n")) == 17
    assert text.eos_ids == {NUM_VOCAB - 1}
    assert "user: hi" in text.render([{"role": "user", "content": "hi"}])
