"""A model folder that has a text side and no weights: a token is a byte, 256 ends an answer."""

import json
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_model_folder(parent: Path, name: str = "fake", *, template: str = TEMPLATE) -> Path:
    """Make the folder below `parent`."""
    folder = parent / name
    folder.mkdir(parents=True)
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 256,
                "content": "<eos>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": _vocabulary(), "merges": []},
    }
    files = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"eos_token": "<eos>", "chat_template": template},
        "config.json": {"model_type": "llama", "max_position_embeddings": 4096},
        "generation_config.json": {"eos_token_id": 256},
    }
    for file, value in files.items():
        (folder / file).write_text(json.dumps(value))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def tokenizer_with(parent: Path, special: str) -> str:
    """A tokenizer.json that has one more special token."""
    value = json.loads((write_model_folder(parent) / "tokenizer.json").read_text())
    value["added_tokens"].append({**value["added_tokens"][0], "id": 257, "content": special})
    return json.dumps(value)


def _vocabulary() -> dict[str, int]:
    """The letters by which byte-level tokenizers spell bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return {letter: byte for byte, letter in letters.items()}
