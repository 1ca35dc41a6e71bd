"""The tiny random models of the soak: one for each form in which layers keep their state.

Knows nothing about servers. Plain random weights forget a prefix soon, so that greedy text would
not tell a wrong state from the right one; here they are scaled until it does.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.utils

from tests.fakes import tiny
from tests.models import demo_model

KINDS = {"kv": "llama", "state": "qwen3_next", "window": "gemma3_text"}
_NUM_LAYERS = {"kv": 2, "state": 4, "window": 2}
_mx: Any = mx  # what its stubs leave untyped
_trees: Any = mlx.utils
_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_NUM_VOCAB, _WINDOW, _EOS = 49152, 8192, 2
_MIXER_SCALE = 3.0
_DECAYS = (0.002, 0.05)  # a token; recurrent layers then remember dozens to hundreds of tokens


def write_models(folder: Path, names: list[str]) -> None:
    """Write one model directory for each name in KINDS, with the demo model's text side."""
    demo = demo_model()
    for name in names:
        kind = KINDS[name]
        config = {
            **tiny.CONFIGS[kind],
            "num_hidden_layers": _NUM_LAYERS[name],
            "vocab_size": _NUM_VOCAB,
            "max_position_embeddings": _WINDOW,
        }
        model = tiny.build_config(config)
        if name == "state":
            model.update(_trees.tree_map_with_path(_remembering, model.parameters()))
            _mx.eval(model.parameters())
        tiny.save(model, folder / name, config)
        for file in _TEXT_FILES:
            shutil.copy(demo / file, folder / name / file)
        (folder / name / "generation_config.json").write_text(json.dumps({"eos_token_id": _EOS}))


def _remembering(path: str, weight: Any) -> Any:
    if path.endswith(("o_proj.weight", "out_proj.weight")):
        return weight * _MIXER_SCALE
    if path.endswith("A_log"):
        return mx.log(mx.linspace(*_DECAYS, weight.shape[0]))
    return weight
