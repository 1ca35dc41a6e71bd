"""The text side of a model folder: where templates, ids and limits come from.

Knows nothing about single templates or detokenizers.
"""

import json
import logging
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from tokenizers import processors

from omlx.errors import ModelError
from omlx.models.text import TemplateError, TextModel
from tests.unit.models import templates, tiny
from tests.unit.models.tiny import chat, text_folder, write_json


def test_a_chat_goes_to_tokens_and_back(tmp_path: Path) -> None:
    model = TextModel.load(text_folder(tmp_path, template=templates.PLAIN))
    text = model.render(chat(("user", "the é")))
    assert text == "<|im_start|>user\nthe é<|im_end|>\n<|im_start|>assistant\n"
    ids = model.encode(text)
    assert ids[0] == 1
    assert ids.count(2) == 1
    assert model.decode(ids) == "user\nthe é\nassistant\n"


def test_encode_adds_and_cuts_nothing(tmp_path: Path) -> None:
    """A tokenizer.json may ask for a start token, a length limit and padding."""
    tokenizer = tiny.byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=20)
    model = TextModel.load(text_folder(tmp_path, tokenizer=tokenizer))
    assert len(model.encode("zzzzzzzz")) == 8


def test_surrogates_in_the_prompt_do_no_harm(tmp_path: Path) -> None:
    model = TextModel.load(text_folder(tmp_path))
    assert model.decode(model.encode("a\ud800b")) == "a\ufffdb"
    assert model.encode("\ud83d\ude00") == model.encode("😀")


class TestTemplateFiles:
    """Where the template is looked for."""

    def test_the_jinja_file_beats_the_json_entries(self, tmp_path: Path) -> None:
        folder = text_folder(tmp_path, tokenizer_config={"chat_template": "entry"})
        assert TextModel.load(folder).render(chat(("user", "x"))) == "entry"
        write_json(folder / "chat_template.json", {"chat_template": "json"})
        assert TextModel.load(folder).render(chat(("user", "x"))) == "json"
        (folder / "chat_template.jinja").write_text("file")
        assert TextModel.load(folder).render(chat(("user", "x"))) == "file"

    def test_named_templates(self, tmp_path: Path) -> None:
        named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, 7]
        folder = text_folder(tmp_path, tokenizer_config={"chat_template": named})
        model = TextModel.load(folder)
        assert model.render(chat(("user", "x"))) == "d"
        assert model.render(chat(("user", "x")), tools=[{"type": "function"}]) == "t"
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("T")
        model = TextModel.load(folder)
        assert model.render(chat(("user", "x")), tools=[{"type": "function"}]) == "T"

    def test_none_names_the_missing_file(self, tmp_path: Path) -> None:
        model = TextModel.load(text_folder(tmp_path))
        assert not model.has_template
        with pytest.raises(TemplateError, match="no chat template") as caught:
            model.render(chat(("user", "x")))
        assert "chat_template.jinja" in caught.value.hint

    def test_a_broken_one_warns_at_load_and_refuses_later(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "omlx.models"):
            model = TextModel.load(text_folder(tmp_path, template="{% if %}"))
        assert "broken, line 1" in caplog.text
        with pytest.raises(TemplateError, match="broken"):
            model.render(chat(("user", "x")))

    def test_the_day_comes_from_the_clock_given(self, tmp_path: Path) -> None:
        folder = text_folder(tmp_path, template=templates.DATED)
        model = TextModel.load(folder, today=lambda: date(2026, 2, 1))
        assert model.render(chat(("user", "x"))) == "Today is 01 February 2026. x"


class TestFacts:
    """Ids and limits from the configuration files."""

    def test_end_tokens_come_from_all_files(self, tmp_path: Path) -> None:
        config = {"eos_token_id": [5, True], "text_config": {"eos_token_id": 6}}
        folder = text_folder(tmp_path, config=config)
        write_json(folder / "generation_config.json", {"eos_token_id": 7})
        assert TextModel.load(folder).eos_ids == {2, 5, 6, 7}

    def test_end_token_named_only_in_the_special_tokens_map(self, tmp_path: Path) -> None:
        folder = text_folder(tmp_path, config={})
        write_json(folder / "tokenizer_config.json", {})
        write_json(folder / "special_tokens_map.json", {"eos_token": "<|endoftext|>"})
        assert TextModel.load(folder).eos_ids == {0}

    def test_no_end_token_is_warned_about(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = text_folder(tmp_path, config={}, tokenizer_config={"eos_token": None})
        with caplog.at_level(logging.WARNING, "omlx.models"):
            assert TextModel.load(folder).eos_ids == frozenset()
        assert "end-of-sequence" in caplog.text

    def test_a_tokenizer_that_lost_its_special_tokens_is_warned_about(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = text_folder(tmp_path)
        data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        write_json(folder / "tokenizer.json", {**data, "added_tokens": []})
        with caplog.at_level(logging.WARNING, "omlx.models"):
            TextModel.load(folder)
        assert "no special tokens" in caplog.text

    @pytest.mark.parametrize(
        ("config", "limit", "window"),
        [
            ({"max_position_embeddings": 100}, 50, 100),
            ({"text_config": {"max_position_embeddings": 70}, "seq_length": 3}, 50, 70),
            ({"n_positions": 60}, None, 60),
            ({"max_position_embeddings": "x"}, 50, 50),
            ({}, int(1e30), None),
            ({}, None, None),
        ],
    )
    def test_context_window(
        self, tmp_path: Path, config: dict[str, object], limit: object, window: int | None
    ) -> None:
        folder = text_folder(tmp_path, config=config, tokenizer_config={"model_max_length": limit})
        assert TextModel.load(folder).context_window == window


class TestBrokenFiles:
    """Every bad file is an error that names it."""

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": {"type": "X"}}', b"\xff"])
    def test_tokenizer(self, tmp_path: Path, content: bytes) -> None:
        (text_folder(tmp_path) / "tokenizer.json").write_bytes(content)
        with pytest.raises(ModelError, match=r"tokenizer\.json is not a usable tokenizer"):
            TextModel.load(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
    @pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
    def test_configuration(self, tmp_path: Path, name: str, content: bytes) -> None:
        (text_folder(tmp_path) / name).write_bytes(content)
        with pytest.raises(ModelError, match=name):
            TextModel.load(tmp_path)

    def test_template(self, tmp_path: Path) -> None:
        (text_folder(tmp_path) / "chat_template.jinja").write_bytes(b"\xff")
        with pytest.raises(ModelError, match=r"chat_template\.jinja is not UTF-8"):
            TextModel.load(tmp_path)


def test_the_text_side_loads_no_mlx_numpy_or_transformers(tmp_path: Path) -> None:
    folder = text_folder(tmp_path, template=templates.QWEN)
    code = (
        "import sys; from pathlib import Path; from omlx.models.text import TextModel\n"
        f"TextModel.load(Path({str(folder)!r})).render([{{'role': 'user', 'content': 'x'}}])\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'mlx', 'mlx_lm', 'numpy', 'transformers', 'sanic', 'click'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
