"""The classes of an own architecture, in the form that mlx-lm's `load_model` asks for them.

Knows nothing about weights; loads an architecture's file only when a model needs it.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from omlx.models.arch.known import OWN

GetClasses = Callable[[Mapping[str, Any]], tuple[Any, Any]]


def own_classes(config: Mapping[str, Any]) -> GetClasses | None:
    """What to give as `get_model_classes` for a model; None where mlx-lm's own is right."""
    name = OWN.get(str(config.get("model_type")))
    if name is None:
        return None
    module = importlib.import_module(f"omlx.models.arch.{name}")

    def classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
        return module.Model, module.ModelArgs

    return classes
