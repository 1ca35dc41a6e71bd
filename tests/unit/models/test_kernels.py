"""Modules with kernels in models' trees: which are replaced, when kernels are called, same logits.

The kernels are plain functions of a device that isn't there; see tests/fakes/kernels.py.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.records import Verdict, read_records
from omlx.custom_kernels.selection import Selection
from omlx.errors import ModelError
from omlx.models.fused import FusedBlock
from omlx.models.kernels import PackedLinear, PlainLinear, Served, serve_by_kernels, use_kernels
from omlx.models.load import KernelUse, load
from tests.fakes import tiny
from tests.fakes.harness import Harness
from tests.fakes.kernels import FakeBackend, records_of

FUSED = {"norm_qkv", "qk_rope", "norm_gate_up", "qmm_small"}
ROWS = (1, 3)
CONFIGS = {
    **{name: tiny.CONFIGS[name] for name in ("llama", "qwen3", "gemma3_text", "qwen3_moe")},
    "llama, own head": {**tiny.CONFIGS["llama"], "tie_word_embeddings": False},
    "llama 3 rope": {
        **tiny.CONFIGS["llama"],
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
        },
    },
}  # fmt: skip


def quantized(name: str = "llama", *, bits: int = 4, dtype: mx.Dtype = mx.bfloat16) -> Any:
    """A tiny model with packed weights, of which 16-bit floats are the rest."""
    model = tiny.build_config(CONFIGS[name])
    nn.quantize(model, group_size=64, bits=bits)
    return cast(model, dtype)


def cast(model: Any, dtype: mx.Dtype) -> Any:
    """The model with all its floats in a type (mutates it)."""

    def changed(p: mx.array) -> mx.array:
        return p.astype(dtype) if mx.issubdtype(p.dtype, mx.floating) else p

    model.update(tree_map(changed, model.parameters()))
    mx.eval(model.parameters())
    return model


def steps(model: Any, rows: int, *, num: int = 2, prompt: int = 3) -> np.ndarray:
    """Logits [num, rows, V] of decode steps on fixed tokens after a prompt."""
    tokens = mx.random.randint(0, tiny.NUM_VOCAB, (rows, prompt + num), key=mx.random.key(rows))
    cache = make_prompt_cache(model)
    model(tokens[:, :prompt], cache=cache)
    found = [
        model(tokens[:, prompt + i : prompt + i + 1], cache=cache)[:, -1].astype(mx.float32)
        for i in range(num)
    ]
    mx.eval(found)
    return np.stack([np.array(one) for one in found])


def with_kernels(
    model: Any, path: Path, names: Sequence[str] = NAMES, **how: Any
) -> tuple[Served, list[str]]:
    """Replace modules, with verdicts on some kernels; and the list of launches to come."""
    backend = FakeBackend(calls=([],))
    records = records_of(path / "kernels.json", backend, names, **how)
    return use_kernels(model, Selection(backend, read_records(records))), backend.calls[0]


def modules_of(model: Any, kind: type) -> list[str]:
    return [name for name, module in model.named_modules() if type(module) is kind]


def error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, mx.bfloat16) for name in CONFIGS), ("llama", mx.float16)]
)
def test_logits_are_as_near_to_float32_as_plain_ones(
    name: str, dtype: mx.Dtype, tmp_path: Path
) -> None:
    plain = {rows: steps(quantized(name, dtype=dtype), rows) for rows in ROWS}
    wide = cast(quantized(name, dtype=dtype), mx.float32)
    model = quantized(name, dtype=dtype)
    _, calls = with_kernels(model, tmp_path)
    for rows in ROWS:
        exact = steps(wide, rows)
        calls.clear()
        found = steps(model, rows)
        assert error(found, exact) < max(1.2 * error(plain[rows], exact), 0.01)
        is_fused = name.startswith(("llama", "qwen3")) and name != "qwen3_moe"
        assert {*calls} >= (FUSED if is_fused else {"qmm_small"})


def test_logits_of_16_bit_weights_are_as_near_to_float32_as_plain_ones(tmp_path: Path) -> None:
    def made(dtype: mx.Dtype) -> Any:
        return cast(cast(tiny.build("llama"), mx.bfloat16), dtype)

    plain, model, wide = made(mx.bfloat16), made(mx.bfloat16), made(mx.float32)
    served, calls = with_kernels(model, tmp_path)
    assert served.used == {"gemm_small": 7 * 4} and not modules_of(model, FusedBlock)
    for rows in ROWS:
        exact = steps(wide, rows)
        assert error(steps(model, rows), exact) < max(1.2 * error(steps(plain, rows), exact), 0.01)
    assert {*calls} == {"gemm_small"}


def test_rows_of_different_lengths(tmp_path: Path) -> None:
    """As a batch has them: padded on the left, each at a position of its own."""
    model, wide = quantized("qwen3"), cast(quantized("qwen3"), mx.float32)
    _, calls = with_kernels(model, tmp_path)
    prompt = mx.random.randint(0, tiny.NUM_VOCAB, (2, 8), key=mx.random.key(5))
    found: list[np.ndarray] = []
    for one in (model, wide):
        cache = [BatchKVCache(left_padding=[0, 5]) for _ in one.layers]
        one(prompt, cache=cache)
        calls.clear()
        logits = one(prompt[:, :1], cache=cache).astype(mx.float32)
        found.append(np.array(logits))
    assert error(found[0], found[1]) < 0.05


def test_parameters_keep_their_names_and_arrays(tmp_path: Path) -> None:
    for name in ("llama", "qwen3_moe"):
        model = quantized(name)
        before = dict(tree_flatten(model.parameters()))
        with_kernels(model, tmp_path)
        after = dict(tree_flatten(model.parameters()))
        assert {*before} == {*after}
        assert all(after[key] is before[key] for key in before)


def test_which_modules_are_replaced(tmp_path: Path) -> None:
    model = quantized("llama, own head")
    served, _ = with_kernels(model, tmp_path)
    assert len(modules_of(model, FusedBlock)) == 4
    assert len(modules_of(model, PackedLinear)) == 4 * 7 + 1
    assert served.used == {
        "norm_qkv": 4, "qk_rope": 4, "norm_gate_up": 4, "qmm_small": 4 + 4 * 7 + 1,
        "flat_rows": 4 * 7 + 1,
    }  # fmt: skip
    assert not served.lacking


def test_a_prompt_goes_its_own_way(tmp_path: Path) -> None:
    model = quantized("llama")
    _, calls = with_kernels(model, tmp_path)
    for shape in ((1, 9), (2, 5)):
        mx.eval(model(mx.zeros(shape, dtype=mx.int32), cache=make_prompt_cache(model)))
    assert calls == []
    mx.eval(model(mx.zeros((17, 1), dtype=mx.int32), cache=make_prompt_cache(model)))
    assert calls == [], "more rows than the kernels take"


def test_activations_of_another_type_go_their_own_way(tmp_path: Path) -> None:
    layer = nn.QuantizedLinear(128, 64, bias=False, group_size=64, bits=4)
    model = cast(nn.Sequential(layer, nn.Linear(64, 64, bias=False)), mx.bfloat16)
    served, calls = with_kernels(model, tmp_path)
    assert served.used == {"qmm_small": 1, "flat_rows": 1, "gemm_small": 1}
    mx.eval(model(mx.zeros((1, 1, 128))))
    assert calls == []
    mx.eval(model(mx.zeros((1, 1, 128), dtype=mx.bfloat16)))
    assert calls == ["qmm_small", "gemm_small"]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.QuantizedLinear(128, 64, bias=True, group_size=64, bits=4),
        lambda: nn.QuantizedLinear(128, 64, bias=False, group_size=32, bits=4, mode="mxfp4"),
        lambda: nn.QuantizedLinear(128, 64, bias=False, group_size=64, bits=3),
        lambda: nn.QuantizedEmbedding(128, 64, group_size=64, bits=4),
        lambda: nn.Linear(128, 64, bias=True),
        lambda: nn.Linear(120, 64, bias=False),
    ],
)
def test_what_no_kernel_takes_stays(layer: Any, tmp_path: Path) -> None:
    made = cast(layer(), mx.bfloat16)
    model = nn.Sequential(made)
    served, _ = with_kernels(model, tmp_path)
    assert model.layers[0] is made and served.used == {} and served.lacking == {}


def test_layers_in_float32_stay(tmp_path: Path) -> None:
    model = quantized("llama", dtype=mx.float32)
    served, _ = with_kernels(model, tmp_path)
    assert served.used == {} and served.lacking == {}


def test_a_block_of_mixed_formats_is_not_fused_and_its_layers_have_kernels(tmp_path: Path) -> None:
    model = tiny.build_config(CONFIGS["llama"])
    nn.quantize(
        model, class_predicate=lambda path, _: {"bits": 8 if "v_proj" in path else 4,
                                                "group_size": 64} if "proj" in path else False
    )  # fmt: skip
    model = cast(model, mx.bfloat16)
    served, calls = with_kernels(model, tmp_path, ("qmm_small", *FUSED))
    assert served.used == {"qmm_small": 28} and not modules_of(model, FusedBlock)
    steps(model, 1, num=1)
    assert {*calls} == {"qmm_small"}


def test_a_sliding_layer_goes_its_own_way(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    config = {**CONFIGS["llama"], "layer_types": kinds, "sliding_window": 8}
    model = tiny.build_config(config)
    nn.quantize(model, group_size=64, bits=4)
    model = cast(model, mx.bfloat16)
    wide = tiny.build_config(config)
    nn.quantize(wide, group_size=64, bits=4)
    exact = steps(cast(cast(wide, mx.bfloat16), mx.float32), 1)
    _, calls = with_kernels(model, tmp_path)
    assert error(steps(model, 1), exact) < 0.05
    assert calls.count("norm_qkv") == 2, "the two full layers, traced once for all steps"


def test_a_verdict_of_failure_is_never_used(tmp_path: Path) -> None:
    model = quantized("llama")
    served, calls = with_kernels(model, tmp_path, verdict=Verdict.FAILED, reason="NaN")
    assert served.used == {} and not modules_of(model, PackedLinear)
    assert {*served.lacking} == FUSED | {"flat_rows"}
    assert {*served.lacking.values()} == {"failed verification: NaN"}
    steps(model, 1)
    assert calls == []


def test_without_verdicts_nothing_is_used(tmp_path: Path) -> None:
    model = quantized("llama")
    served, _ = with_kernels(model, tmp_path, ())
    assert served.used == {}
    assert {*served.lacking.values()} == {"not verified on this device"}


def test_one_kernel_that_is_missing_leaves_blocks_as_they_are(tmp_path: Path) -> None:
    model = quantized("llama")
    served, _ = with_kernels(model, tmp_path, [name for name in NAMES if name != "qk_rope"])
    assert served.used == {"qmm_small": 28, "flat_rows": 28}
    assert {*served.lacking} == {"qk_rope"}


@pytest.mark.parametrize("speedup", [0.5, 1.0])
def test_a_kernel_that_is_not_faster_is_not_used_and_not_lacking(
    speedup: float, tmp_path: Path
) -> None:
    served, _ = with_kernels(quantized("llama"), tmp_path, speedup=speedup)
    assert served.used == {} and served.lacking == {}


def test_the_fastest_serves_each_number_of_rows(tmp_path: Path) -> None:
    backend = FakeBackend(calls=([],))
    path = tmp_path / "kernels.json"
    records_of(path, backend, ["qmm_small"], speedup=2.0)
    records_of(path, backend, ["flat_rows"], speedup=3.0)
    model = cast(
        nn.Sequential(nn.QuantizedLinear(128, 64, bias=False, group_size=64, bits=4)), mx.bfloat16
    )
    served = use_kernels(model, Selection(backend, read_records(path)))
    assert served.used == {"qmm_small": 1, "flat_rows": 1}
    (layer,) = model.layers
    x = mx.random.normal((20, 1, 128)).astype(mx.bfloat16)
    for rows, num_calls in ((1, 1), (7, 2), (8, 2), (16, 2), (20, 2)):
        wanted = layer.own_way(x[:rows])
        assert mx.allclose(model(x[:rows]), wanted, atol=0.05).item()
        assert len(backend.calls[0]) == num_calls, "from eight rows on mlx computes them at once"


def test_state_that_comes_back_gives_the_same_bits(tmp_path: Path) -> None:
    model = quantized("qwen3")
    _, calls = with_kernels(model, tmp_path)
    engine = Harness(model, tmp_path / "cache", block_size=32)
    try:
        prompt = list(np.random.default_rng(1).integers(3, tiny.NUM_VOCAB, 80).tolist())
        cold = engine.ask(prompt, 4)
        engine.restart()
        warm = engine.ask(prompt, 4)
    finally:
        engine.stop()
    assert warm.cached == len(prompt) - 1 and "norm_qkv" in calls
    assert warm.tokens == cold.tokens
    for a, b in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_lacking_is_a_warning_with_the_fix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = FakeBackend()
    path = records_of(tmp_path / "kernels.json", backend, ["qmm_small"])
    with caplog.at_level(logging.INFO, logger="omlx.models.kernels"):
        served = serve_by_kernels(quantized(), backend, path, is_required=False)
    assert served.used == {"qmm_small": 28}
    (warning,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "omlx kernel build flat_rows norm_qkv norm_gate_up qk_rope" in warning.getMessage()
    assert "Reference 9000" in warning.getMessage()
    assert "qmm_small in 28" in caplog.text


def test_what_is_required_and_lacking_is_an_error(tmp_path: Path) -> None:
    backend = FakeBackend()
    names = [name for name in NAMES if name != "qk_rope"]
    path = records_of(tmp_path / "kernels.json", backend, names)
    with pytest.raises(ModelError, match="qk_rope: not verified on this device") as caught:
        serve_by_kernels(quantized(), backend, path, is_required=True)
    assert caught.value.hint == "omlx kernel build qk_rope, or kernels.require = false"
    whole = records_of(path, backend)
    assert serve_by_kernels(quantized(), backend, whole, is_required=True).used


class OnGpu:
    """mlx as it is, but for the device that it says it computes on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    def default_device(self) -> mx.Device:
        """A GPU."""
        return mx.Device(mx.gpu)


def test_a_load_on_a_gpu_uses_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    monkeypatch.setattr("omlx.models.load._mx", OnGpu())
    monkeypatch.setattr("omlx.custom_kernels.backend.this_backend", lambda: backend)
    config = CONFIGS["llama"]
    folder = tiny.save(cast(tiny.build_config(config), mx.bfloat16), tmp_path / "m", config)
    path = tmp_path / "kernels.json"
    assert load(folder).kernels == (), "nobody asked for them"
    assert load(folder, kernels=KernelUse(path)).kernels == ()
    with pytest.raises(ModelError, match="gemm_small: not verified"):
        load(folder, kernels=KernelUse(path, is_required=True))
    records_of(path, backend)
    loaded = load(folder, kernels=KernelUse(path, is_required=True))
    assert loaded.kernels == ("gemm_small",)
    assert len(modules_of(loaded.model, PlainLinear)) == 28


def test_settings_reach_the_engine(tmp_path: Path) -> None:
    from omlx.engine.pool import engine_config
    from omlx.models.locate import discover
    from omlx.settings.build import load as load_settings

    config = CONFIGS["llama"]
    tiny.save(tiny.build_config(config), tmp_path / "models" / "m", config)
    (entry,) = discover([tmp_path / "models"]).models
    env = {"OMLX_HOME": str(tmp_path), "HOME": str(tmp_path)}

    def made(**cli: object) -> Any:
        named = {key.replace("__", "."): value for key, value in cli.items()}
        return engine_config(entry, load_settings(cli=named, env=env, cwd=tmp_path))

    usual = made()
    assert usual.kernel_records == str(tmp_path / "state" / "kernels.json")
    assert usual.require_kernels is False
    assert made(kernels__enabled=False).kernel_records == ""
    assert made(kernels__require=True).require_kernels is True


def test_on_a_cpu_nothing_is_replaced(tmp_path: Path) -> None:
    config = CONFIGS["llama"]
    folder = tiny.save(cast(tiny.build_config(config), mx.bfloat16), tmp_path / "m", config)
    loaded = load(folder, kernels=KernelUse(tmp_path / "kernels.json", is_required=True))
    assert loaded.kernels == ()
    assert not modules_of(loaded.model, PlainLinear) and modules_of(loaded.model, nn.Linear)


def test_on_a_cpu_no_kernel_is_imported(tmp_path: Path) -> None:
    config = CONFIGS["llama"]
    folder = tiny.save(tiny.build_config(config), tmp_path / "m", config)
    code = (
        "import json, sys\nfrom pathlib import Path\n"
        "from omlx.models.load import KernelUse, load\n"
        f"load(Path({str(folder)!r}), kernels=KernelUse(Path('none')))\n"
        "print(json.dumps([m for m in sys.modules if 'kernels' in m and m.startswith('omlx')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
