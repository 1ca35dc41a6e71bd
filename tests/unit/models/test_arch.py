"""Own architectures: chosen by model_type, right against a reference, and still needed."""

import ast
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING

from omlx.errors import ModelError
from omlx.models.arch import granite_swa
from omlx.models.arch.classes import own_classes
from omlx.models.arch.known import OWN, Architectures
from omlx.models.fingerprint import fingerprint
from omlx.models.load import load
from tests.fakes import tiny

ARCH = Path(granite_swa.__file__).parent
GRANITE: dict[str, Any] = {
    "model_type": "granite_swa",
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "sliding_window": 8,
    "layer_rope_theta": [0, 10000.0, 10000.0, 500.0, 10000.0],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def granite(config: dict[str, Any] = GRANITE, seed: int = 0) -> Any:
    """A random model whose sinks are no zeros."""
    mx.random.seed(seed)
    model = granite_swa.Model(granite_swa.ModelArgs.from_dict(config))
    model.update(
        tree_map(
            lambda p: mx.random.normal(p.shape) * (p.shape[-1] ** -0.5 if p.ndim > 1 else 1.0),
            model.parameters(),
        )
    )
    model.eval()
    mx.eval(model.parameters())
    return model


def reference(model: Any, ids: list[int], config: dict[str, Any] = GRANITE) -> np.ndarray:
    """The logits by the definition, in numpy and float64, without caches or masks of mlx."""

    def w(module: Any) -> np.ndarray:
        return np.asarray(module.weight, dtype=np.float64)

    def norm(x: np.ndarray, module: Any) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w(module)

    def rope(x: np.ndarray, theta: float) -> np.ndarray:
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles), np.sin(angles)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    heads, kv_heads, size = 4, 2, 16
    embeddings = w(model.model.embed_tokens)
    x = embeddings[ids] * config["embedding_multiplier"]
    length = len(ids)
    distance = np.arange(length)[:, None] - np.arange(length)[None]
    for index, layer in enumerate(model.layers):
        attention, h = layer.self_attn, norm(x, layer.input_layernorm)

        def split(module: Any, n: int, h: np.ndarray = h) -> np.ndarray:
            return (h @ w(module).T).reshape(length, n, size).swapaxes(0, 1)

        q, k = split(attention.q_proj, heads), split(attention.k_proj, kv_heads)
        v = split(attention.v_proj, kv_heads)
        theta = config["layer_rope_theta"][index]
        if theta:
            q, k = rope(q, theta), rope(k, theta)
        k, v = np.repeat(k, heads // kv_heads, 0), np.repeat(v, heads // kv_heads, 0)
        scores = q @ k.swapaxes(1, 2) * config["attention_multiplier"]
        seen = distance >= 0
        if index % 4:
            seen &= distance < config["sliding_window"]
        scores = np.where(seen, scores, -np.inf)
        sinks = np.asarray(attention.sinks, dtype=np.float64)[:, None, None]
        weights = np.exp(scores)
        out = weights @ v / (weights.sum(-1, keepdims=True) + np.exp(sinks))
        out = out.swapaxes(0, 1).reshape(length, -1) @ w(attention.o_proj).T
        x = x + out * config["residual_multiplier"]
        h = norm(x, layer.post_attention_layernorm)
        gate, up = h @ w(layer.mlp.gate_proj).T, h @ w(layer.mlp.up_proj).T
        hidden = gate / (1 + np.exp(-gate)) * up
        x = x + hidden @ w(layer.mlp.down_proj).T * config["residual_multiplier"]
    return norm(x, model.model.norm) @ embeddings.T / config["logits_scaling"]


IDS = [int(i) for i in np.random.default_rng(3).integers(0, 128, 30)]


def test_granite_swa_is_what_its_definition_says() -> None:
    model = granite()
    found = np.asarray(model(mx.array([IDS]))[0], dtype=np.float64)
    expected = reference(model, IDS)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("piece", [1, 7, 16])
def test_granite_swa_in_pieces_with_its_caches(piece: int) -> None:
    model = granite()
    caches = make_prompt_cache(model)
    assert [type(cache).__name__ for cache in caches] == ["KVCache"] + ["RotatingKVCache"] * 3 + [
        "KVCache"
    ]
    parts = [
        np.asarray(model(mx.array([IDS[at : at + piece]]), cache=caches)[0])
        for at in range(0, len(IDS), piece)
    ]
    np.testing.assert_allclose(np.concatenate(parts), reference(model, IDS), atol=3e-5, rtol=3e-5)


def test_the_reference_notices_sinks_and_windows() -> None:
    """What the comparisons above rest on."""
    model = granite()
    right = reference(model, IDS)
    model.layers[1].self_attn.sinks = mx.zeros((4,))
    assert np.abs(reference(model, IDS) - right).max() > 1e-3
    model = granite()
    assert np.abs(reference(model, IDS, {**GRANITE, "sliding_window": 9}) - right).max() > 1e-3


def test_a_folder_of_an_own_architecture_is_loaded(tmp_path: Path) -> None:
    model = granite()
    folder = tiny.save(model, tmp_path / "m", GRANITE)
    loaded = load(folder)
    assert (loaded.num_vocab, type(loaded.model)) == (128, granite_swa.Model)
    assert mx.array_equal(loaded.model(mx.array([IDS])), model(mx.array([IDS])))


def test_a_configuration_that_is_none(tmp_path: Path) -> None:
    config = {**GRANITE, "layer_types": ["full_attention", "other"]}
    folder = tiny.save(granite(), tmp_path / "m", config)
    with pytest.raises(ModelError, match="layer_types has 'other'"):
        load(folder)


def test_own_code_is_part_of_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.save(granite(), tmp_path / "m", GRANITE)
    before = fingerprint(folder, mlx_lm_version="1")
    monkeypatch.setattr(
        "omlx.models.fingerprint.own_source", lambda _: b"another version of the file"
    )
    assert fingerprint(folder, mlx_lm_version="1") != before


def test_others_are_left_to_mlx_lm() -> None:
    assert own_classes({"model_type": "llama"}) is None
    assert own_classes({}) is None


@pytest.mark.parametrize("model_type", list(OWN))
def test_no_own_architecture_is_superfluous(model_type: str) -> None:
    """Fails when mlx-lm has it: then remove the file and its line in OWN."""
    assert not Architectures.installed().has(model_type)


def test_every_file_says_its_origin_and_when_to_remove_it() -> None:
    files = {path.stem for path in ARCH.glob("*.py")} - {"__init__", "known", "classes"}
    assert files == set(OWN.values())
    for name in files:
        said = ast.get_docstring(ast.parse((ARCH / f"{name}.py").read_text())) or ""
        assert re.search(r"^Origin: .*", said, re.M)
        assert f"Remove when mlx-lm has models/{name}.py" in said.replace("\n", " ")


def test_what_mlx_lm_has() -> None:
    known = Architectures.installed()
    for model_type in ("llama", "qwen3", "gpt_oss", *MODEL_REMAPPING):
        assert known.why_not({"model_type": model_type}) is None
    assert known.why_not({"model_type": "granite_swa"}) is None
    assert known.why_not({}) is None
    reason = known.why_not({"model_type": "whisper"})
    assert reason is not None and reason.endswith("does not know its architecture, 'whisper'")
    assert known.renamed == set(MODEL_REMAPPING)
    assert known.why_not({"model_type": "cache"}) is not None


def test_nothing_is_unknown_where_mlx_lm_cannot_be_read() -> None:
    assert Architectures(frozenset(), frozenset()).why_not({"model_type": "x"}) is None
