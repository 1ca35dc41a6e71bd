"""Opens a model lazily and runs it layer by layer, so that one layer at a time is in memory.

Knows nothing about formats. The model's own forward runs; only what it finds in its list of layers
is exchanged for the time of a call, so masks and types of layers are the architecture's own.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_map

from omlx.errors import ModelError
from omlx.models.arch.classes import own_classes
from omlx.models.config import read_json

# What the stubs of these libraries leave untyped.
_mx: Any = mx
_loading: Any = mlx_lm.utils

# Called with a layer's index, the layer, its input, and what else the model gives it.
OnLayer = Callable[..., mx.array]


class Slot(nn.Module):
    """Stands for a module: calls go to a function, everything else to the module itself."""

    def __init__(self, inner: Any, call: Callable[..., Any]) -> None:
        super().__init__()
        # In a function, since a module that is an attribute would become a child.
        self._reach = lambda: inner
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function makes of the module and the arguments."""
        return self._call(self._reach(), *args, **kwargs)

    def __getattr__(self, key: str) -> Any:
        """The module's own attributes."""
        if key in ("_reach", "_call"):
            raise AttributeError(key)
        return getattr(self._reach(), key)


class LayeredModel:
    """A model with lazy weights; for one thread."""

    def __init__(self, path: Path) -> None:
        try:
            classes = own_classes(read_json(path / "config.json"))
            chosen = {} if classes is None else {"get_model_classes": classes}
            self.model, self.config = _loading.load_model(path, lazy=True, **chosen)
        except (ValueError, KeyError, TypeError, OSError, RuntimeError, ImportError) as error:
            raise ModelError(
                f"can't load the model in {path}: {error}",
                hint="check config.json and the safetensors files; mlx-lm must know the "
                "architecture",
            ) from error
        if self.config.get("quantization") is not None:
            self.model = _loading.dequantize_model(self.model)  # lazily, too
        # Kernels that have no gradient are used for inference only.
        self.model.train()
        self.holder, self.prefix = _layer_list(self.model, path)
        self.layers: list[Any] = list(self.holder)

    def __len__(self) -> int:
        return len(self.layers)

    def run(self, tokens: mx.array, on_layer: OnLayer) -> mx.array:
        """The logits of tokens [sequences, tokens], lazily, with `on_layer` called for each layer.

        It gets the index, the layer, and the arguments that the model gives the layer.
        """
        for idx, layer in enumerate(self.layers):
            self.holder[idx] = Slot(layer, partial(_shifted, on_layer, idx))
        try:
            return self.model(tokens)
        finally:
            self.holder[:] = self.layers

    def widen(self, module: Any) -> None:
        """Bring a module's weights into memory, in float32 (mutates the module)."""

        def wide(array: mx.array) -> mx.array:
            is_half = array.dtype in (mx.float16, mx.bfloat16)
            return array.astype(mx.float32) if is_half else array

        module.update(tree_map(wide, module.parameters()))
        _mx.eval(module.parameters())

    def release(self, module: Any) -> None:
        """Let a module's weights go; it can't be run after that (mutates the module)."""
        module.update(tree_map(lambda array: mx.zeros((0,), array.dtype), module.parameters()))
        _mx.clear_cache()


def _shifted(on_layer: OnLayer, idx: int, layer: Any, *args: Any, **kwargs: Any) -> Any:
    return on_layer(idx, layer, *args, **kwargs)


def _layer_list(model: Any, path: Path) -> tuple[list[Any], str]:
    """The list that holds the model's layers, and its path within the model."""
    layers = cast(list[Any], model.layers)
    for name, module in model.named_modules():
        for key, value in module.items():
            if isinstance(value, list) and value and cast(list[Any], value)[0] is layers[0]:
                held = cast(list[Any], value)
                return held, f"{name}.{key}" if name else str(key)
    raise ModelError(f"the architecture of {path} keeps its layers in no list; can't go by layers")
