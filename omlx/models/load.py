"""Weights to a running model, through mlx-lm.

Knows nothing about text or caches. Engine thread only: lazy arrays belong to the thread that
made them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.utils
import mlx_lm.utils
from mlx_lm.models.cache import make_prompt_cache

from omlx.errors import ModelError
from omlx.models.arch.classes import own_classes
from omlx.models.config import read_json

# What the stubs of these libraries leave untyped.
_mx: Any = mx
_loading: Any = mlx_lm.utils
_trees: Any = mlx.utils


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with evaluated weights, and how many token ids it knows."""

    model: Any
    config: Mapping[str, Any]
    num_vocab: int
    weight_bytes: int


def mlx_lm_version() -> str:
    """The version of mlx-lm: part of a model's fingerprint."""
    return version("mlx-lm")


def load(path: Path) -> LoadedModel:
    """Load the model in `path` and evaluate its weights; ModelError."""
    try:
        classes = own_classes(read_json(path / "config.json"))
        chosen = {} if classes is None else {"get_model_classes": classes}
        model, config = _loading.load_model(path, **chosen)
    except (ValueError, KeyError, TypeError, OSError, RuntimeError, ModuleNotFoundError) as error:
        raise ModelError(
            f"can't load the model in {path}: {error}",
            hint="check config.json and the safetensors files; mlx-lm must know the architecture",
        ) from error
    logits = _one_token(model, make_prompt_cache(model))
    weight_bytes = sum(a.nbytes for _, a in _trees.tree_flatten(model.parameters()))
    return LoadedModel(model, config, int(logits.shape[-1]), weight_bytes)


def probe_caches(model: Any) -> list[Any]:
    """The layer caches of `model` after one token: their classes, shapes and types."""
    caches = make_prompt_cache(model)
    _one_token(model, caches)
    return caches


def _one_token(model: Any, caches: list[Any]) -> mx.array:
    logits = model(mx.array([[0]]), cache=caches)
    _mx.eval(logits)
    return logits
