"""A tiny model that real coding agents can talk to: its answers end, and it calls their tools.

Weights are random but for the output head, which is wired as a chain of tokens: every answer is a
fixed text and the end of a turn. With "TOOLTEST" in a user's text the template opens the chain of
the client's shell tool, and with "EDITTEST" that of an edit as aider wants it.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

ANSWER = (
    "The answer is one two three four five six seven eight nine ten red green blue white black "
    "yellow stone river tree done."
)
SECRET = "the stone is under the river"  # what the file says that every call reads
_COMMAND = "cat README.md"
# The shell tool of each client and what it is called with; the first that a client has is called.
CALLS: dict[str, dict[str, object]] = {
    "Bash": {"command": _COMMAND},
    "exec_command": {"cmd": _COMMAND},
    "bash_bare": {"command": _COMMAND},  # `bash` of a client that refuses what it doesn't know
    "bash": {"command": _COMMAND, "description": "show"},
    # It loses what a command prints right before its end when the machine is busy.
    "run_shell_command": {"command": f"{_COMMAND}; sleep 1", "is_background": False},
    "exec": {"command": _COMMAND},
    "terminal": {"command": _COMMAND},
    "run_commands": {"commands": [_COMMAND]},
    "read_file": {"path": "README.md"},
}
EDITED = "the tree is done"
_EDIT = f"README.md\n```\n{EDITED}\n```\n"
_HIDDEN, _HEADS, _HEAD_DIM, _INNER = 64, 1, 32, 128
_WINDOW = 131072

_TEMPLATE = """\
{%- macro txt(c) -%}
{%- if c is string -%}{{ c }}
{%- elif c -%}{%- for p in c -%}{{ p.text if p.text is defined }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(open='', system='', done=false, call=false, edit=false) -%}
{%- for m in messages -%}
{%- if m.role in ('system', 'developer') and loop.first -%}{%- set ns.system = txt(m.content) -%}
{%- elif m.role == 'user' -%}
{%- if 'TOOLTEST' in txt(m.content) -%}{%- set ns.call = true -%}{%- endif -%}
{%- if 'EDITTEST' in txt(m.content) -%}{%- set ns.edit = true -%}{%- endif -%}
{%- elif m.role in ('assistant', 'tool') and (ns.call or ns.edit) -%}{%- set ns.done = true -%}
{%- endif -%}
{%- endfor -%}
{{- '<|im_start|>system\\n' ~ (ns.system or 'You are a helpful assistant.') -}}
{%- if tools -%}
{{- '\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}
{%- for name in KNOWN if ns.call and not ns.done -%}
{%- for tool in tools if not ns.open and tool.function.name == name -%}
{%- set bare = '_bare' if name == 'bash'
    and 'description' not in (tool.function.parameters.properties or {}) -%}
{%- set ns.open = '<|call_' ~ name ~ bare ~ '|>' -%}
{%- endfor -%}
{%- endfor -%}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and ' -}}
{{- 'arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": ' -}}
{{- '<function-name>, "arguments": <args-json-object>}\\n</tool_call>' -}}
{%- elif ns.edit and not ns.done -%}{%- set ns.open = '<|edit|>' -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for m in messages -%}
{%- if m.role in ('system', 'developer') and loop.first -%}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' ~ txt(m.content) -}}
{%- for call in m.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' -}}
{{- call.function.arguments if call.function.arguments is string else
    call.function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif m.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' ~ txt(m.content) -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ txt(m.content) ~ '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' ~ ns.open -}}{%- endif -%}
"""


@dataclass(slots=True)
class _Vocabulary:
    """The demo model's tokenizer with tokens of our own."""

    raw: dict[str, Any]
    num_first: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_first = len(self.raw["model"]["vocab"])

    @property
    def size(self) -> int:
        return self.num_first + sum(
            token["id"] >= self.num_first for token in self.raw["added_tokens"]
        )

    def add(self, text: str, *, is_special: bool) -> int:
        """A token that is exactly this text."""
        token = {
            "id": self.size,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": is_special,
        }
        self.raw["added_tokens"].append(token)
        return token["id"]


def agent_model(demo: Path, path: Path, *, window: int = _WINDOW) -> Path:
    """Write the model into the new folder `path`, with the tokenizer of the demo model."""
    path.mkdir(parents=True)
    words = _Vocabulary(json.loads((demo / "tokenizer.json").read_text()))
    calls = {
        name: (
            words.add(f"<|call_{name}|>", is_special=True),
            words.add(_call(name.removesuffix("_bare"), arguments), is_special=False),
        )
        for name, arguments in CALLS.items()
    }
    edit = words.add("<|edit|>", is_special=True), words.add(_EDIT, is_special=False)
    (path / "tokenizer.json").write_text(json.dumps(words.raw, ensure_ascii=False))
    settings = json.loads((demo / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(
        json.dumps({**settings, "model_max_length": window})
    )
    (path / "chat_template.jinja").write_text(_TEMPLATE.replace("KNOWN", repr(tuple(CALLS))))
    shutil.copy(demo / "generation_config.json", path)
    (path / "config.json").write_text(json.dumps(_config(words.size, window)))
    chains = [_answer(path), *([*pair, _END] for pair in (*calls.values(), edit))]
    weights = _weights(words.size)
    for chain in chains:
        for before, after in zip(chain, chain[1:], strict=False):
            source = weights["model.embed_tokens.weight"][before]
            weights["lm_head.weight"][after] += 10 * source / np.linalg.norm(source)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


_END = 2


def _call(name: str, arguments: dict[str, object]) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def _answer(path: Path) -> list[int]:
    """The answer's chain, from the last token of the generation prompt to the end of the turn."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
    ids = tokenizer.encode(ANSWER, add_special_tokens=False).ids
    assert len(set(ids)) == len(ids), "a chain must not cross itself"
    return [opening[-1], *ids, _END]


def _config(num_tokens: int, window: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": window,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "vocab_size": num_tokens,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": _END,
        "pad_token_id": _END,
        "torch_dtype": "float32",
    }


def _weights(num_tokens: int) -> dict[str, Any]:
    """Random weights whose layers hardly change what the chain says."""
    random = np.random.default_rng(7)

    def drawn(*shape: int, scale: float = 0.1) -> Any:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    ones = np.ones(_HIDDEN, np.float32)
    weights = {
        "model.embed_tokens.weight": drawn(num_tokens, _HIDDEN, scale=1.0),
        "model.norm.weight": ones,
        "lm_head.weight": drawn(num_tokens, _HIDDEN, scale=0.02),
    }
    for layer in range(2):
        at = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj"):
            weights[f"{at}self_attn.{name}.weight"] = drawn(_HEADS * _HEAD_DIM, _HIDDEN)
        weights[f"{at}self_attn.o_proj.weight"] = drawn(_HIDDEN, _HEADS * _HEAD_DIM, scale=0.002)
        for name in ("gate_proj", "up_proj"):
            weights[f"{at}mlp.{name}.weight"] = drawn(_INNER, _HIDDEN)
        weights[f"{at}mlp.down_proj.weight"] = drawn(_HIDDEN, _INNER, scale=0.002)
        weights[f"{at}input_layernorm.weight"] = ones
        weights[f"{at}post_attention_layernorm.weight"] = ones
    return weights
