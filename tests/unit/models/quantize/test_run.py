"""A whole quantization of a small model: files, resuming, refusals, the same bytes again.

Knows nothing about other kinds of layers; tests/e2e/test_quantize_kinds.py does.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model
from safetensors import safe_open

from omlx.errors import ModelError
from omlx.models.agreement import in_float32
from omlx.models.load import load
from omlx.models.quantize import result, run
from omlx.models.quantize.calibration import Calibration
from omlx.models.quantize.plan import Goal
from omlx.models.quantize.run import Options, Quantization
from omlx.models.text import TextModel
from tests.quantizing import kl, quantized, small_model

BITS = 5.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small", "qwen3")


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, run.Made]:
    out = tmp_path_factory.mktemp("made") / "out"
    return out, quantized(model, out, BITS)


def calibration_kl(model: Path, out: Path) -> float:
    """The KL of whole models on the calibration text, in float32."""
    sequences = Calibration.load(model, None, max_tokens=256).sequences
    first, second = (in_float32(load(path).model) for path in (model, out))
    total = 0.0
    for ids in sequences:
        p, q = (one(mx.array([ids])) for one in (first, second))
        log_p, log_q = (x - mx.logsumexp(x, axis=-1, keepdims=True) for x in (p, q))
        total += float(mx.sum(mx.exp(log_p) * (log_p - log_q)).item())
    return total / sum(len(ids) for ids in sequences)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_result_is_a_model_that_mlx_lm_loads(model: Path, made: Any) -> None:
    out, facts = made
    loaded, config = load_model(out)
    assert facts.plan.bits <= BITS
    assert config["torch_dtype"] == "float16"
    for name, label in facts.plan.formats.items():
        if label != "kept":
            layer = loaded
            for part in name.split("."):
                layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
            assert layer.bits == int(label[0]) or label.endswith(("4", "8"))
    assert kl(model, out) < 0.2
    assert facts.measured_kl == pytest.approx(calibration_kl(model, out), rel=2e-2)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    with safe_open(out / "model.safetensors", "numpy") as file:
        assert set(index["weight_map"]) == set(file.keys())
        assert file.metadata() == {"format": "mlx"}
    assert index["metadata"]["total_size"] == facts.plan.nbytes


def test_what_belongs_to_the_tokenizer_is_the_same_bytes(model: Path, made: Any) -> None:
    """T2: files are copied, and encode the same."""
    out, _ = made
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (model / name).read_bytes()
    text = "the 12é <|im_start|> 😀\n\tx"
    assert TextModel.load(out).encode(text) == TextModel.load(model).encode(text)
    assert not list(out.parent.glob(".*"))


def test_the_card_says_what_was_measured(made: Any) -> None:
    out, facts = made
    text = (out / "README.md").read_text()
    assert f"{facts.plan.bits:.2f} bits a weight" in text
    assert "| embed_tokens |" in text


def test_the_same_run_gives_the_same_bytes(model: Path, made: Any, tmp_path: Path) -> None:
    out, _ = made
    quantized(model, tmp_path / "out", BITS)
    assert contents(tmp_path / "out") == contents(out)


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("share", [0.2, 0.45, 0.8, 1.0])
def test_a_run_that_was_broken_off_goes_on_to_the_same_bytes(
    model: Path, made: Any, tmp_path: Path, share: float
) -> None:
    """Q1: no folder that looks whole before it is."""
    seen: list[int] = []

    def counting(*_: object) -> None:
        seen.append(1)

    options = Options(model, tmp_path / "out", Goal(bits=BITS), tokens=256)
    total = 2 * 3 + 2 + 4

    def stopping(*_: object) -> None:
        seen.append(1)
        if len(seen) >= share * total:
            raise Stop

    with pytest.raises(Stop):
        Quantization(options, stopping).run()
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.quantize").is_dir()
    again = Quantization(options, counting).run()
    assert again.is_resumed
    assert contents(tmp_path / "out") == contents(made[0])
    assert not (tmp_path / ".out.quantize").exists()


def test_a_plan_writes_nothing_and_its_measurements_are_used(model: Path, tmp_path: Path) -> None:
    first = quantized(model, tmp_path / "out", BITS, plans_only=True)
    assert not (tmp_path / "out").exists()
    second = quantized(model, tmp_path / "out", 4.0, plans_only=True)
    assert second.is_resumed
    assert not first.is_resumed
    assert second.plan.nbytes < first.plan.nbytes
    assert second.plan.predicted_kl > first.plan.predicted_kl
    other = quantized(model, tmp_path / "out", 4.0, plans_only=True, dtype="float32")
    assert not other.is_resumed


def test_a_size_and_a_quality_are_kept_to(model: Path, tmp_path: Path) -> None:
    options = {"tokens": 256, "plans_only": True}
    quiet = lambda *_: None  # noqa: E731
    sized = Quantization(Options(model, tmp_path / "o", Goal(size_bytes=70_000), **options), quiet)
    found = sized.run().plan
    assert 48_000 < found.nbytes <= 70_000
    good = Quantization(Options(model, tmp_path / "o", Goal(kl=0.02), tokens=256), quiet).run()
    assert good.measured_kl is not None and 0.002 < good.measured_kl <= 0.02


def test_what_is_quantized_already_is_refused(made: Any, model: Path, tmp_path: Path) -> None:
    out, _ = made
    with pytest.raises(ModelError, match="quantized already") as caught:
        quantized(out, tmp_path / "again", BITS)
    assert "--requantize" in caught.value.hint
    assert not (tmp_path / "again").exists()


def test_what_is_quantized_already_is_taken_where_that_is_wanted(
    made: Any, model: Path, tmp_path: Path
) -> None:
    out, facts = made
    again = quantized(out, tmp_path / "again", 4.0, requantize=True)
    assert again.num_values == facts.num_values
    assert again.plan.bits <= 4.0
    load_model(tmp_path / "again")
    assert kl(model, out) < kl(model, tmp_path / "again") < 1.0


def test_a_folder_that_is_there_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="is already there"):
        quantized(model, tmp_path / "out", BITS)


def test_bits_that_can_not_be_had_are_refused_with_what_can(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--bits 2 is less than this model can take") as caught:
        quantized(model, tmp_path / "out", 2.0)
    assert "--bits" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_layers_that_are_dropped_are_not_declared_any_more(tmp_path: Path) -> None:
    """Q3: config and weights agree."""
    more = {"num_nextn_predict_layers": 1}
    model = small_model(tmp_path / "m", "qwen3", more=more)
    quantized(model, tmp_path / "out", BITS)
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 0
    )


def test_a_disk_without_room_is_said_before_anything_is_rounded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.shutil, "disk_usage", lambda _: type("U", (), {"free": 1000})())
    with pytest.raises(ModelError, match="there is no room"):
        quantized(model, tmp_path / "out", BITS)
    assert not list((tmp_path / ".out.quantize").glob("part-*"))


def test_another_run_on_the_same_target_is_refused(model: Path, tmp_path: Path) -> None:
    import os

    folder = tmp_path / ".out.quantize"
    folder.mkdir()
    (folder / "pid").write_text(str(os.getppid()))
    with pytest.raises(ModelError, match="belongs to a quantization that runs"):
        quantized(model, tmp_path / "out", BITS)


def test_memory_is_checked_before_anything_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1: the estimate comes first."""
    monkeypatch.setattr(run.psutil, "virtual_memory", lambda: type("M", (), {"total": 1000})())
    with pytest.raises(ModelError, match="needs about .* of memory in float32"):
        quantized(model, tmp_path / "out", BITS)
    assert not list(tmp_path.iterdir())


def test_more_calibration_takes_no_more_memory_for_weights(model: Path, tmp_path: Path) -> None:
    """Q1: statistics are summed up call by call."""
    peaks: list[int] = []
    for tokens in (1024, 1536):
        mx.reset_peak_memory()
        quantized(model, tmp_path / str(tokens), BITS, tokens=tokens)
        peaks.append(mx.get_peak_memory())
    hidden = 64 * 4 * (1536 - 1024)
    assert peaks[1] - peaks[0] < 8 * hidden  # inputs, outputs and gradients of one layer


def test_shards_have_a_limit_and_an_index(tmp_path: Path) -> None:
    parts = []
    for number in range(3):
        path = tmp_path / f"part-{number}.safetensors"
        arrays = {f"t{number}.{n}": mx.full((256,), number + n, mx.float32) for n in range(3)}
        mx.save_safetensors(str(path), arrays)
        parts.append(path)
    folder = tmp_path / "out"
    folder.mkdir()
    result.write_shards(parts, folder, limit=2500, progress=lambda *_: None)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {
        f"model-{n:05d}-of-00005.safetensors" for n in range(1, 6)
    }
    for name, shard in index["weight_map"].items():
        array = mx.load(str(folder / shard))[name]
        assert array[0].item() == int(name[1]) + int(name[3])
