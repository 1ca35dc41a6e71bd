"""The import of a GGUF file: exact values, exact repacking, whole folders or none.

Knows nothing about hostile file structure.
"""

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from omlx.errors import ModelError
from omlx.models.gguf import Form, import_gguf
from omlx.models.locate import discover
from omlx.models.text import TextModel
from tests.unit.models import gguf_writer as w
from tests.unit.models import tiny

QUANTS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def expected(tensors: list[w.Tensor]) -> dict[str, np.ndarray]:
    """Each tensor under its new name, unpacked and unrotated one row at a time, in float64."""
    values: dict[str, np.ndarray] = {}
    for tensor in tensors:
        *block, part, _ = tensor.name.split(".")
        name = f"model.layers.{block[1]}.{NAMES[part]}" if block else NAMES[part]
        rows = np.array(w.unpack(tensor.quant, tensor.data)).reshape(tensor.shape)
        if part in ("attn_q", "attn_k"):
            heads = w.HEADS if part == "attn_q" else w.KV_HEADS
            order = [
                head * w.HEAD + 2 * (row % (w.HEAD // 2)) + row // (w.HEAD // 2)
                for head in range(heads)
                for row in range(w.HEAD)
            ]
            rows = rows[order]
        values[name + ".weight"] = rows
    return values


def run(
    tmp_path: Path, matrix: str = "Q4_1", form: Form = "float32", **kwargs: str
) -> tuple[Path, dict[str, np.ndarray]]:
    tensors = w.llama_tensors(matrix, embedding=kwargs.pop("embedding", "Q8_0"))
    path = w.write_gguf(tmp_path / "m.gguf", w.llama_metadata(), tensors)
    import_gguf(path, tmp_path / "out", form=form, **kwargs)  # type: ignore[arg-type]
    return tmp_path / "out", expected(tensors)


@pytest.mark.parametrize("quant", QUANTS)
def test_float32_holds_what_the_file_says(tmp_path: Path, quant: str) -> None:
    out, wanted = run(tmp_path, quant, embedding=quant)
    found = load_file(out / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert values.dtype == np.float32
        assert np.array_equal(values, wanted[name].astype(np.float32)), name


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
def test_halves_are_rounded_once_to_nearest_even(tmp_path: Path, form: Form) -> None:
    out, wanted = run(tmp_path, "Q4_1", form)
    found = mx.load(str(out / "model.safetensors"))
    kind = mx.float16 if form == "float16" else mx.bfloat16
    for name, values in found.items():
        rounded = mx.array(wanted[name].astype(np.float32)).astype(kind)
        assert values.dtype == kind
        assert mx.array_equal(values, rounded).item(), name


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("scales", ["float32", "float16"])
def test_native_repacks_without_rounding(tmp_path: Path, quant: str, scales: str) -> None:
    out, wanted = run(tmp_path, quant, "native", scales=scales, embedding="Q8_0")
    found = mx.load(str(out / "model.safetensors"))
    config = json.loads((out / "config.json").read_text())
    assert config["torch_dtype"] == scales
    for name, rows in wanted.items():
        stem = name.removesuffix(".weight")
        if rows.ndim == 1:
            assert mx.allclose(found[name], mx.array(rows.astype(np.float32)), atol=1e-3).item()
            continue
        entry = config["quantization"].get(stem, config["quantization"])
        assert found[stem + ".scales"].dtype == getattr(mx, scales)
        values = mx.dequantize(
            found[name],
            scales=found[stem + ".scales"].astype(mx.float32),
            biases=found[stem + ".biases"].astype(mx.float32),
            group_size=entry["group_size"],
            bits=entry["bits"],
        )
        # The sum scale * code + bias is not in the file: only MLX rounds it, to float32.
        assert np.allclose(np.array(values), rows, rtol=1e-6, atol=1e-6), name
    usual = 8 if quant == "Q8_0" else 4
    own = (
        {}
        if usual == 8
        else {"model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"}}
    )
    assert config["quantization"] == {"group_size": 32, "bits": usual, "mode": "affine", **own}
    assert config["quantization_config"] == config["quantization"]


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0"])
def test_native_codes_and_scales_are_the_files_own(tmp_path: Path, quant: str) -> None:
    out, _ = run(tmp_path, quant, "native")
    found = load_file(out / "model.safetensors")
    source = w.tensor("blk.0.attn_v.weight", (w.KV_HEADS * w.HEAD, w.WIDTH), quant)
    size = w.TYPES[quant][2]
    blocks = [source.data[i : i + size] for i in range(0, len(source.data), size)]
    scales = np.array([struct.unpack("<e", block[:2])[0] for block in blocks])
    stem = "model.layers.0.self_attn.v_proj"
    assert np.array_equal(found[stem + ".scales"].ravel(), scales)
    offset = {"Q4_0": scales * -8, "Q8_0": scales * -128}.get(quant)
    if offset is None:
        offset = np.array([struct.unpack("<e", block[2:4])[0] for block in blocks])
    assert np.array_equal(found[stem + ".biases"].ravel(), offset)


def test_matrices_in_floats_stay_floats_in_native(tmp_path: Path) -> None:
    out, wanted = run(tmp_path, "BF16", "native", embedding="F16")
    found = load_file(out / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert "quantization" not in json.loads((out / "config.json").read_text())


def test_large_tensors_are_written_in_slabs(tmp_path: Path) -> None:
    """A tensor larger than a slab comes out the same, and progress ends at the total."""
    metadata = w.llama_metadata()
    num_rows = 40_000
    own = json.loads(tiny.byte_level().to_str())["model"]["vocab"]
    names = [*sorted(own, key=own.__getitem__), *(f"t{n}" for n in range(num_rows))][:num_rows]
    tokens = [w.text(name) for name in names]
    metadata["llama.vocab_size"] = w.u32(num_rows)
    metadata["tokenizer.ggml.tokens"] = w.array(tokens)
    metadata["tokenizer.ggml.token_type"] = w.array([w.u32(1)] * num_rows)
    metadata["tokenizer.ggml.merges"] = w.array([], kind=8)
    tensors = w.llama_tensors()
    data = random.Random(1).randbytes(num_rows * w.WIDTH)
    block = struct.pack("<e", 0.5)
    packed = b"".join(block + data[i : i + 32] for i in range(0, len(data), 32))
    tensors[0] = w.Tensor("token_embd.weight", (num_rows, w.WIDTH), "Q8_0", packed)
    path = w.write_gguf(tmp_path / "m.gguf", metadata, tensors)
    seen: list[tuple[int, int]] = []
    import_gguf(path, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    values = load_file(tmp_path / "out" / "model.safetensors")["model.embed_tokens.weight"]
    assert np.array_equal(values, np.frombuffer(data, np.int8).reshape(num_rows, -1) * 0.5)
    assert len(seen) > len(tensors)
    assert seen == sorted(seen)
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(v.nbytes for v in load_file(tmp_path / "out" / "model.safetensors").values())
    )


def test_the_folder_is_a_whole_model(tmp_path: Path) -> None:
    out, wanted = run(tmp_path)
    assert sorted(file.name for file in out.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    (entry,) = discover([out]).models
    assert (entry.model_type, entry.context_window, entry.dtype) == ("llama", 128, "float32")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == wanted.keys()
    with safe_open(out / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "mlx"}
    text = TextModel.load(out)
    assert text.eos_ids == {2}
    assert text.render([{"role": "user", "content": "x"}]) == "xé"
    ids = text.encode("<|im_start|>the 12é")
    assert ids[0] == 1
    assert text.decode(ids) == "the 12é"


def test_mlx_lm_runs_the_result(tmp_path: Path) -> None:
    from mlx_lm.utils import load_model

    logits = {}
    for form in ("float32", "native"):
        (tmp_path / form).mkdir()
        out, _ = run(tmp_path / form, "Q4_1", form)
        model, _ = load_model(out)
        logits[form] = np.array(model(mx.array([[1, 5, 9]])))
    assert logits["float32"].shape == (1, 3, w.num_tokens())
    assert np.allclose(logits["float32"], logits["native"], rtol=1e-3, atol=1e-3)


def test_an_untied_output_becomes_the_head(tmp_path: Path) -> None:
    tensors = [*w.llama_tensors(), w.tensor("output.weight", (w.num_tokens(), w.WIDTH), "Q8_0")]
    path = w.write_gguf(tmp_path / "m.gguf", w.llama_metadata(), tensors)
    import_gguf(path, tmp_path / "out")
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    )
    assert "lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")


REFUSED: dict[str, tuple[Mapping[str, w.Typed | None], str]] = {
    "architecture": ({"general.architecture": w.text("mamba")}, "architecture 'mamba'"),
    "no architecture": ({"general.architecture": None}, "'general.architecture' is missing"),
    "rope": ({"llama.rope.scaling.type": w.text("yarn")}, r"scales its rope \(yarn\)"),
    "experts": ({"llama.expert_count": w.u32(8)}, "expert_used_count' is missing"),
    "more layers": ({"llama.block_count": w.u32(3)}, "lacks tensors|lacks the tensor"),
    "many layers": ({"llama.block_count": w.u32(2**31 - 1)}, "lacks tensors"),
    "fewer layers": ({"llama.block_count": w.u32(1)}, "unknown tensor 'blk.1"),
    "no layers": ({"llama.block_count": w.u32(0)}, "make no llama model"),
    "no heads": ({"llama.attention.head_count": w.u32(0)}, "make no llama model"),
    "heads": ({"llama.attention.head_count": w.u32(8)}, "has the shape"),
    "width": ({"llama.embedding_length": w.u32(128)}, "has the shape"),
    "rope size": ({"llama.attention.key_length": w.u32(32)}, "make no llama model"),
    "vocabulary": ({"llama.vocab_size": w.u32(5)}, "has the shape"),
    "epsilon": ({"llama.attention.layer_norm_rms_epsilon": w.f32(float("nan"))}, "not a number"),
    "wordpiece": ({"tokenizer.ggml.model": w.text("bert")}, "tokenizer 'bert'"),
    "scores": ({"tokenizer.ggml.model": w.text("llama")}, "scores' is missing"),
    "pre-tokenizer": ({"tokenizer.ggml.pre": w.text("odd")}, "of kind 'odd'"),
    "no merges": ({"tokenizer.ggml.merges": None}, "'tokenizer.ggml.merges' is missing"),
    "odd merge": ({"tokenizer.ggml.merges": w.array([w.text("t h e")])}, "merge of unknown"),
    "unknown merge": ({"tokenizer.ggml.merges": w.array([w.text("t zz")])}, "merge of unknown"),
    "types": ({"tokenizer.ggml.token_type": w.array([w.u32(1)])}, "leaves one without its type"),
    "end token": ({"tokenizer.ggml.eos_token_id": w.u32(10**6)}, "past the last token"),
    "template": ({"tokenizer.chat_template": w.u32(1)}, "'tokenizer.chat_template' is not a text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_imported_is_said_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    changes, reason = REFUSED[name]
    metadata = {**w.llama_metadata(), **{k: v for k, v in changes.items() if v is not None}}
    for key in [key for key, value in changes.items() if value is None]:
        del metadata[key]
    path = w.write_gguf(tmp_path / "m.gguf", metadata, w.llama_tensors())
    with pytest.raises(ModelError, match=reason):
        import_gguf(path, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "blk.0.attn_q.weight/../x", "blk.0.attn_q.bias", "", "rope_freqs.weight"],
)
def test_tensors_with_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    tensors = [*w.llama_tensors(), w.tensor(name, (8,), "F32")]
    path = w.write_gguf(tmp_path / "m.gguf", w.llama_metadata(), tensors)
    with pytest.raises(ModelError, match="unknown tensor|rope_freqs"):
        import_gguf(path, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("form", ["float32", "bfloat16", "native"])
def test_odd_numbers_pass_without_warnings(tmp_path: Path, quant: str, form: Form) -> None:
    """Infinite, not-a-number and denormal scales are values like others."""
    tensors = w.llama_tensors(quant)
    for tensor in tensors[2:]:
        tensor.data = random.Random(3).randbytes(len(tensor.data))
    path = w.write_gguf(tmp_path / "m.gguf", w.llama_metadata(), tensors)
    import_gguf(path, tmp_path / "out", form=form)
    if form == "bfloat16":
        name = "model.layers.0.mlp.up_proj.weight"
        found = mx.load(str(tmp_path / "out" / "model.safetensors"))[name].astype(mx.float32)
        wanted = np.array(w.unpack(quant, tensors[9].data)).reshape(w.HIDDEN, w.WIDTH)
        assert tensors[9].name == "blk.0.ffn_up.weight"
        assert np.array_equal(np.isnan(np.array(found)), np.isnan(wanted))


def test_values_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    tensors = w.llama_tensors("F32")
    tensors[1].data = struct.pack("<f", 1e6) * w.WIDTH
    path = w.write_gguf(tmp_path / "m.gguf", w.llama_metadata(), tensors)
    with pytest.raises(ModelError, match=r"model\.norm\.weight holds values too large"):
        import_gguf(path, tmp_path / "out", form="float16")
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(ModelError, match="already there"):
        import_gguf(w.llama(tmp_path / "m.gguf"), tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_a_disk_that_can_not_take_more_leaves_nothing(tmp_path: Path) -> None:
    path = w.llama(tmp_path / "m.gguf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(ModelError, match=r"out can't be written: File too large"):
            import_gguf(path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(w.llama(tmp_path / "m.gguf"), tmp_path / "out", progress=interrupt)
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


def test_what_a_killed_import_left_goes_with_the_next(tmp_path: Path) -> None:
    path = w.llama(tmp_path / "m.gguf")
    code = (
        "import os, signal; from pathlib import Path; from omlx.models.gguf import import_gguf\n"
        f"import_gguf(Path({str(path)!r}), Path({str(tmp_path / 'out')!r}),"
        f" progress=lambda *_: os.kill(os.getpid(), {int(signal.SIGKILL)}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.glob(".out.import-*"))) == 1
    alive = tmp_path / f".out.import-{os.getppid()}"
    alive.mkdir()
    import_gguf(path, tmp_path / "out")
    assert list(tmp_path.glob(".out.import-*")) == [alive]
