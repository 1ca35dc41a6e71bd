"""The oracle: transformers renders and decodes the same, and is the fallback.

Knows nothing about our own implementation beyond TextModel.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from omlx.errors import ModelError
from omlx.models.text import TextModel
from tests.unit.models import templates, tiny
from tests.unit.models.tiny import chat, text_folder, write_json

transformers = pytest.importorskip("transformers")

TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "<é> & '\"", "x": [1, None]}}
]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "ü", "b": [1]}}}
CHATS: dict[str, list[dict[str, object]]] = {
    "one": list(chat(("user", "Hi <b> é"))),
    "many": list(chat(("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"))),
    "calls": [
        *chat(("user", "u")),
        {"role": "assistant", "content": "text", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ],
    "reasoning": [*chat(("user", "u")), {"role": "assistant", "content": "a", "reasoning": "r"}],
}


@pytest.mark.parametrize(
    "source",
    [
        templates.PLAIN,
        templates.QWEN,
        templates.ITEMS,
        templates.PARTS_OR_TEXT,
        templates.GENERATION,
        templates.DATED,
        templates.TOJSON,
    ],
    ids=["plain", "qwen", "items", "parts", "generation", "dated", "tojson"],
)
def test_rendering_equals_transformers(tmp_path: Path, source: str) -> None:
    folder = text_folder(tmp_path, template=source)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = TextModel.load(folder)
    for messages, tools, add in product(CHATS.values(), (None, TOOLS), (True, False)):
        options: dict[str, Any] = {"tools": tools, "add_generation_prompt": add}
        expected = theirs.apply_chat_template(messages, tokenize=False, x_extra=1, **options)
        text = ours.render(messages, extra={"x_extra": 1}, **options)
        assert text == expected
        ids = ours.encode(text)
        assert ids == theirs.encode(expected, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_extra_values_equal_transformers(tmp_path: Path) -> None:
    folder = text_folder(tmp_path, template=templates.QWEN)
    theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    expected = theirs.apply_chat_template(
        CHATS["one"], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert "</think>" in expected
    ours = TextModel.load(folder).render(CHATS["one"], extra={"enable_thinking": False})
    assert ours == expected


def test_vocabulary_files_load_through_transformers(tmp_path: Path) -> None:
    model = json.loads(tiny.byte_level().to_str())["model"]
    write_json(tmp_path / "vocab.json", model["vocab"])
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", "utf-8")
    named = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>"}
    write_json(tmp_path / "tokenizer_config.json", named)
    text = TextModel.load(tmp_path)
    ids = text.encode("the é<|im_end|>")
    assert text.eos_ids == {2}
    assert ids[-1] == 2
    stream = text.stream()
    assert [stream.add(i) for i in ids][-1] == ""
    assert text.decode(ids) == "the é"


def test_tokenizers_written_in_python_load_through_transformers(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})
    text = TextModel.load(tmp_path)
    ids = text.encode("né😀")
    stream = text.stream()
    assert [*map(stream.add, [*ids, 10**6]), stream.finish()] == [
        "n",
        "",
        "é",
        "",
        "",
        "",
        "😀",
        "",
        "",
    ]
    assert text.decode([*ids, 1]) == "né😀"


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    with pytest.raises(ModelError, match="no usable tokenizer") as caught:
        TextModel.load(tmp_path)
    assert "tokenizer.json" in caught.value.hint
