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
    """A model with evaluated weights, how many token ids it knows, and which kernels serve it."""

    model: Any
    config: Mapping[str, Any]
    num_vocab: int
    weight_bytes: int
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelUse:
    """That kernels may serve a model: the file of their verdicts, and whether all that the model
    could use must be verified."""

    records: Path
    is_required: bool = False


def mlx_lm_version() -> str:
    """The version of mlx-lm: part of a model's fingerprint."""
    return version("mlx-lm")


def load(path: Path, *, kernels: KernelUse | None = None) -> LoadedModel:
    """Load the model in `path` and evaluate its weights; ModelError.

    With `kernels`, where mlx computes on a GPU, modules that kernels are faster at are replaced.
    """
    try:
        classes = own_classes(read_json(path / "config.json"))
        chosen = {} if classes is None else {"get_model_classes": classes}
        model, config = _loading.load_model(path, **chosen)
    except (ValueError, KeyError, TypeError, OSError, RuntimeError, ModuleNotFoundError) as error:
        raise ModelError(
            f"can't load the model in {path}: {error}",
            hint="check config.json and the safetensors files; mlx-lm must know the architecture",
        ) from error
    used = () if kernels is None else _use_kernels(model, kernels)
    logits = _one_token(model, make_prompt_cache(model))
    weight_bytes = sum(a.nbytes for _, a in _trees.tree_flatten(model.parameters()))
    return LoadedModel(model, config, int(logits.shape[-1]), weight_bytes, used)


def _use_kernels(model: Any, kernels: KernelUse) -> tuple[str, ...]:
    """The names of the kernels that serve the model from now on (mutates it)."""
    if _mx.default_device().type is not _mx.DeviceType.gpu:
        return ()
    from omlx.custom_kernels.backend import this_backend
    from omlx.models.kernels import serve_by_kernels

    backend = this_backend()
    assert backend is not None
    served = serve_by_kernels(model, backend, kernels.records, is_required=kernels.is_required)
    return tuple(served.used)


def probe_caches(model: Any) -> list[Any]:
    """The layer caches of `model` after one token: their classes, shapes and types."""
    caches = make_prompt_cache(model)
    _one_token(model, caches)
    return caches


def _one_token(model: Any, caches: list[Any]) -> mx.array:
    logits = model(mx.array([[0]]), cache=caches)
    _mx.eval(logits)
    return logits
