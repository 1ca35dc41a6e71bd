"""Which files of a repository a model needs to be served, and whether it can be one at all.

Knows nothing about hubs or disks.
"""

import re
from collections.abc import Sequence

from omlx.errors import ModelError
from omlx.models.hub import RemoteFile

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}")
_WEIGHTS = re.compile(r"model[A-Za-z0-9._-]*\.safetensors")
# Python files never: code that comes with weights is not run.
_SMALL = re.compile(r".*\.(json|jinja|txt|model|tiktoken)")
_TEMPLATE_FOLDER = "additional_chat_templates/"
_MAX_SMALL_BYTES = 256 * 2**20


def needed_files(files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files to fetch, small ones first and weights last; ModelError if it is no model."""
    for file in files:
        _refuse_odd_name(file.name)
    by_name = {file.name: file for file in files}
    weights = [file for file in files if is_weights(file)]
    if "config.json" not in by_name:
        raise ModelError("the repository has no config.json: it holds no model that can be served")
    if not weights:
        others = {file.name.rpartition(".")[2] for file in files} & {"gguf", "bin", "pth", "npz"}
        found = f" (it has .{', .'.join(sorted(others))})" if others else ""
        raise ModelError(
            f"the repository has no model*.safetensors{found}",
            hint="look for a version of the model in MLX or safetensors form",
        )
    small = [file for file in files if _is_small_part(file)]
    return (*sorted(small, key=_rank), *sorted(weights, key=lambda file: file.name))


def is_weights(file: RemoteFile) -> bool:
    """Whether a file holds weights that are loaded."""
    return bool(_WEIGHTS.fullmatch(file.name))


def _rank(file: RemoteFile) -> tuple[bool, str]:
    return (file.name != "config.json", file.name)


def _is_small_part(file: RemoteFile) -> bool:
    name = file.name.removeprefix(_TEMPLATE_FOLDER)
    return bool(_NAME.fullmatch(name) and _SMALL.fullmatch(name) and file.size <= _MAX_SMALL_BYTES)


def _refuse_odd_name(name: str) -> None:
    """A hub has no such names: who sends them wants to write elsewhere."""
    parts = name.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or "\\" in name
        or any(ord(char) < 32 or ord(char) == 127 for char in name)
    ):
        raise ModelError(f"the repository names a file {name[:100]!r}, which no honest one does")
