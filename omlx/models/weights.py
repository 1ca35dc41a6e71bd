"""How many bytes of weights a decode step reads, from the headers of the weight files.

Knows nothing about values or layers' work; reads no weights.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from omlx.errors import ModelError
from omlx.models.config import items, mapping, positive_int, read_json

_MAX_HEADER_BYTES = 100 * 2**20
_EXPERT = re.compile(r"\.(experts|switch_mlp|switch_glu)\.")
_TABLE = re.compile(r"(^|\.)(embed_tokens|wte|tok_embeddings|embeddings?|word_embeddings)\.")
_HEAD = re.compile(r"(^|\.)(lm_head|output)\.")


@dataclass(frozen=True, slots=True)
class StepWeights:
    """Bytes that every step reads, and those of all experts, of which a token takes a few."""

    shared_bytes: int
    expert_bytes: int = 0
    num_experts: int = 0
    experts_per_token: int = 0

    def bytes_of(self, num_rows: int) -> float:
        """What a step of so many rows reads: expected, if rows choose their experts at random."""
        if not self.expert_bytes:
            return float(self.shared_bytes)
        unused = (1 - self.experts_per_token / self.num_experts) ** num_rows
        return self.shared_bytes + self.expert_bytes * (1 - unused)


def step_weights(folder: Path) -> StepWeights:
    """What the model in a folder reads of its weights in a step; ModelError.

    The table of the tokens' embeddings counts only where it is the output matrix, too: else a step
    reads a few rows of it.
    """
    config = read_json(folder / "config.json")
    text = {**config, **mapping(config.get("text_config"))}
    sizes = dict(_sizes(folder))
    has_head = any(_HEAD.search(name) for name in sizes)
    shared = experts = 0
    for name, num_bytes in sizes.items():
        if _EXPERT.search(name):
            experts += num_bytes
        elif not (has_head and _TABLE.search(name)):
            shared += num_bytes
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    total = next((n for key in names if (n := positive_int(text.get(key)))), None)
    names = ("num_experts_per_tok", "moe_topk", "top_k_experts")
    used = next((n for key in names if (n := positive_int(text.get(key)))), None)
    if total is None or used is None:
        return StepWeights(shared + experts)
    return StepWeights(shared, experts, total, min(used, total))


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no safetensors files")
    for path in files:
        for name, entry in _header(path).items():
            place = items(mapping(entry).get("data_offsets"))
            match place:
                case [int(start), int(end)] if 0 <= start <= end:
                    yield name, end - start
                case _:
                    if name != "__metadata__":
                        raise ModelError(f"{path} is damaged: {name!r} has no place in it")


def _header(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MAX_HEADER_BYTES:
                raise ModelError(f"{path} is not a safetensors file: its header is too long")
            parsed: object = json.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from None
    except (struct.error, ValueError, RecursionError):
        raise ModelError(f"{path} is not a safetensors file, or is truncated") from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} is not a safetensors file: its header is no JSON object")
    return cast(dict[str, object], parsed)
