"""Reads a model folder's small JSON files and the facts in them that more than one module needs.

Knows nothing about weights, templates or where models are searched.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from omlx.errors import ModelError

_MAX_BYTES = 64 * 2**20
_WINDOW_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
# Tokenizers without a limit say so with a number like 1e30.
_NO_LIMIT = 10**9


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; ModelError names the file and what is wrong with it."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path} is too large for a configuration file")
        value: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return cast(dict[str, object], value)


def read_json_if_there(path: Path) -> dict[str, object]:
    """The JSON object in a file, or an empty one where there is no such file."""
    return read_json(path) if path.exists() else {}


def mapping(value: object) -> Mapping[str, object]:
    """The value where it is a JSON object, else an empty one."""
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """The value where it is a JSON array, else an empty one."""
    return cast(list[object], value) if isinstance(value, list) else []


def positive_int(value: object) -> int | None:
    """The value where it is a whole number above zero, else None."""
    return value if type(value) is int and value > 0 else None


def context_window(
    config: Mapping[str, object], tokenizer_config: Mapping[str, object] | None = None
) -> int | None:
    """Most tokens that a model was made for, from its configuration; None where it doesn't say."""
    for source in (mapping(config.get("text_config")), config):
        for key in _WINDOW_KEYS:
            window = positive_int(source.get(key))
            if window is not None:
                return window
    limit = positive_int((tokenizer_config or {}).get("model_max_length"))
    return limit if limit is not None and limit < _NO_LIMIT else None
