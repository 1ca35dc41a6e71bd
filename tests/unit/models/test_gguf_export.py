"""The export of a model folder as a GGUF file: the import of it gives the same model.

Knows nothing about llama.cpp.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from omlx.errors import ModelError
from omlx.models.gguf import Form, import_gguf
from omlx.models.gguf_arrays import rotated, unrotated
from omlx.models.gguf_export import export_gguf
from omlx.models.gguf_read import GgufFile
from omlx.models.text import TextModel
from tests.unit.models import gguf_writer as w


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import_gguf(w.llama(tmp_path / "tiny.gguf", "F32", embedding="F32"), tmp_path / "tiny")
    return tmp_path / "tiny"


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("form", ["float32", "float16", "bfloat16"])
def test_weights_come_back_bit_for_bit(tmp_path: Path, form: Form) -> None:
    source = w.llama(tmp_path / "tiny.gguf", "F32", embedding="F32")
    import_gguf(source, tmp_path / "tiny", form=form)
    export_gguf(tmp_path / "tiny", tmp_path / "out.gguf")
    import_gguf(tmp_path / "out.gguf", tmp_path / "again", form=form)
    first, again = (tmp_path / name / "model.safetensors" for name in ("tiny", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_the_tokenizer_and_the_template_come_back(folder: Path, tmp_path: Path) -> None:
    export_gguf(folder, tmp_path / "out.gguf")
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    for path in folder.glob("*.j*"):
        name = path.name
        assert (folder / name).read_text() == (tmp_path / "again" / name).read_text(), name
    text = "abc 12 <|im_end|>é"
    first, again = TextModel.load(folder), TextModel.load(tmp_path / "again")
    assert first.encode(text) == again.encode(text)


def test_the_file_names_what_llama_cpp_asks_for(folder: Path, tmp_path: Path) -> None:
    export_gguf(folder, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as gguf:
        assert gguf.metadata["tokenizer.ggml.pre"] == "smollm"
        assert gguf.metadata["tokenizer.ggml.add_bos_token"] is False
        assert {tensor.quant.name for tensor in gguf.tensors.values()} == {"F32"}
        assert all(tensor.offset % 32 == 0 for tensor in gguf.tensors.values())


def test_ids_without_a_token_are_filled(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    more = np.zeros((3, config["hidden_size"]), np.float32)
    key = "model.embed_tokens.weight"
    weights[key] = np.concatenate([weights[key], more])
    save_file(weights, folder / "model.safetensors")
    edit(folder / "config.json", vocab_size=config["vocab_size"] + 3)
    export_gguf(folder, tmp_path / "out.gguf")
    with GgufFile(tmp_path / "out.gguf") as gguf:
        assert len(gguf.texts("tokenizer.ggml.tokens")) == config["vocab_size"] + 3
        assert gguf.integers("tokenizer.ggml.token_type")[-3:] == [5, 5, 5]


def test_an_untied_head_is_written(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] * 2
    save_file(weights, folder / "model.safetensors")
    edit(folder / "config.json", tie_word_embeddings=False)
    export_gguf(folder, tmp_path / "out.gguf")
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert np.array_equal(again["lm_head.weight"], weights["lm_head.weight"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "qwen3"}, "architecture 'qwen3'"),
        ({"quantization": {"bits": 4}}, "sets quantization"),
        ({"rope_scaling": {"type": "linear"}}, "sets rope_scaling"),
        ({"hidden_size": 65}, "tensor model.embed_tokens.weight is F32"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_what_can_not_be_exported_is_said(
    folder: Path, tmp_path: Path, values: dict[str, object], words: str
) -> None:
    edit(folder / "config.json", **values)
    with pytest.raises(ModelError, match=words):
        export_gguf(folder, tmp_path / "out.gguf")
    assert not [*tmp_path.glob("*out.gguf*")]


def test_an_unknown_pre_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    edit(folder / "tokenizer.json", pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(ModelError, match="pre-tokenizer"):
        export_gguf(folder, tmp_path / "out.gguf")


def test_weights_that_are_cut_are_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cut"):
        export_gguf(folder, tmp_path / "out.gguf")


def test_a_file_that_can_not_be_written_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="can't be written"):
        export_gguf(folder, tmp_path / "nowhere" / "out.gguf")


def test_a_file_that_is_there_is_replaced(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("old")
    export_gguf(folder, out)
    assert out.read_bytes()[:4] == b"GGUF"
    shutil.rmtree(folder)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.data())
def test_rotated_is_the_inverse_of_unrotated(
    heads: int, half: int, row_bytes: int, data: st.DataObject
) -> None:
    size = heads * half * 2 * row_bytes
    raw = data.draw(st.binary(min_size=size, max_size=size))
    turned = rotated(raw, num_heads=heads, row_bytes=row_bytes)
    assert unrotated(turned, num_heads=heads, row_bytes=row_bytes) == raw
