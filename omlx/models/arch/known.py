"""Which architectures can be loaded: those of the installed mlx-lm, and own ones, one file each.

Knows nothing about how they compute; imports neither mlx nor mlx-lm.
"""

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Self

# By model_type: the module of this package that has it.
OWN: Mapping[str, str] = MappingProxyType({"granite_swa": "granite_swa"})
_RENAMED = "MODEL_REMAPPING"
_NO_MODELS = frozenset({"__init__", "base", "cache", "rope_utils", "switch_layers", "activations"})


@dataclass(frozen=True, slots=True)
class Architectures:
    """The model types that mlx-lm has, under their own names and those that it reads as others.

    Both empty where mlx-lm's files can't be read: then nothing is said to be unknown.
    """

    types: frozenset[str]
    renamed: frozenset[str]

    @classmethod
    def installed(cls) -> Self:
        """What the installed mlx-lm has, from the names of its files; nothing of it is run."""
        spec = importlib.util.find_spec("mlx_lm")
        places = spec.submodule_search_locations if spec else None
        if not places:
            return cls(frozenset(), frozenset())
        package = Path(places[0])
        types = {path.stem for path in (package / "models").glob("*.py")} - _NO_MODELS
        return cls(frozenset(types), _renamed(package / "utils.py"))

    def has(self, model_type: str) -> bool:
        """Whether mlx-lm itself can load it."""
        return model_type in self.types or model_type in self.renamed

    def why_not(self, config: Mapping[str, object]) -> str | None:
        """Why a model with this configuration can't be loaded, if so; types are looked at only."""
        model_type = config.get("model_type")
        if not isinstance(model_type, str) or not self.types:
            return None
        if self.has(model_type) or model_type in OWN:
            return None
        return f"mlx-lm {_version()} does not know its architecture, {model_type!r}"


def own_source(config: Mapping[str, object]) -> bytes | None:
    """The code of a model's own architecture, which is a part of what the model computes."""
    name = OWN.get(str(config.get("model_type")))
    return None if name is None else Path(__file__).with_name(f"{name}.py").read_bytes()


def _renamed(source: Path) -> frozenset[str]:
    """The keys of mlx-lm's table of model types that it reads as others."""
    try:
        tree = ast.parse(source.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
        return frozenset()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if _RENAMED in names:
                keys = node.value.keys
                return frozenset(
                    key.value
                    for key in keys
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                )
    return frozenset()


def _version() -> str:
    try:
        return version("mlx-lm")
    except PackageNotFoundError:
        return "(unknown version)"
