"""Random models in the shapes of real ones, for GPU tests and benches."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import qwen3

from omlx.models.load import LoadedModel

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "head_dim": 128,
    "tie_word_embeddings": False,
}


def random_8b(dtype: mx.Dtype = mx.bfloat16, *, num_vocab: int = 151936) -> LoadedModel:
    """A model of Qwen3-8B's shape with random weights that keep activations bounded."""
    mx.random.seed(0)
    config = {**QWEN3_8B, "vocab_size": num_vocab}
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))

    def scaled(p: mx.array) -> mx.array:
        if p.ndim < 2:
            return p.astype(dtype)
        p = (mx.random.normal(p.shape, dtype=dtype) * (1.0 / p.shape[-1] ** 0.5)).astype(dtype)
        mx.eval(p)
        return p

    model.update(tree_map(scaled, model.parameters()))
    mx.eval(model.parameters())
    size = sum(a.nbytes for _, a in tree_flatten(model.parameters()))
    return LoadedModel(model, config, num_vocab, size)
