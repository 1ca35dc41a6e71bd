"""What mlx-lm makes of a reference: uniform formats, its mixed recipes, and its dynamic_quant."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.convert import convert
from mlx_lm.quant import dynamic_quant
from mlx_lm.utils import load_model, quantize_model, save_model

from omlx.models.quantize.calibration import Calibration

RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
# Groups that take a target's bits exactly with one format for all, scales in halves included.
UNIFORM: Mapping[float, tuple[int, int]] = {
    2.5: (2, 64), 3.0: (2, 32), 3.5: (3, 64), 4.0: (3, 32), 4.5: (4, 64), 5.0: (4, 32),
    6.0: (5, 32), 8.0: (6, 32),
}  # fmt: skip
# Bits of the two levels that dynamic_quant mixes, in groups of 64, by the target between them.
LEVELS: Mapping[float, tuple[int, int]] = {
    3.0: (2, 4), 3.5: (2, 4), 4.0: (3, 5), 4.5: (3, 5), 5.0: (4, 6), 6.0: (5, 8), 8.0: (6, 8),
}  # fmt: skip
_CALIBRATION_TOKENS = 2048
_GROUP = 64


def converted(reference: Path, target: Path, **options: Any) -> Path:
    """mlx_lm.convert, with scales in halves."""
    options = {"q_group_size": _GROUP, **options}
    with redirect_stdout(sys.stderr):
        convert(str(reference), str(target), quantize=True, dtype="float16", **options)
    return target


def dynamic(
    reference: Path, folder: Path, levels: tuple[int, int], targets: list[float]
) -> Iterator[tuple[float, Path]]:
    """dynamic_quant with our calibration text: its own sensitivities, once for all targets, and
    the smallest of its results that has at least a target's bits (its own search ends near them).
    """
    low, high = levels
    sizes = {"low_group_size": _GROUP, "high_group_size": _GROUP}
    model, _ = load_model(reference)
    text = Calibration.load(reference, None, max_tokens=_CALIBRATION_TOKENS).sequences
    with redirect_stdout(sys.stderr):
        found = dict(
            dynamic_quant.estimate_sensitivities(
                model, mx.array(list(text)), batch_size=2, low_bits=low, high_bits=high, **sizes
            )
        )
    counts = {name: module.weight.size for name, module in model.named_modules() if name in found}
    for target in targets:
        path = folder / f"dynamic-{target:g}"
        yield target, _allocated(reference, path, levels, chosen(found, counts, levels, target))


def chosen(
    found: Mapping[str, float], counts: Mapping[str, int], levels: tuple[int, int], target: float
) -> frozenset[str]:
    """The most sensitive modules, as many as bring the mean to the target."""
    scales = 32 / _GROUP
    total = sum(counts.values())
    values = total * (levels[0] + scales)
    high: set[str] = set()
    for name in sorted(found, key=lambda name: -found[name]):
        if values >= target * total:
            break
        high.add(name)
        values += counts[name] * (levels[1] - levels[0])
    return frozenset(high)


def _allocated(reference: Path, path: Path, levels: tuple[int, int], high: frozenset[str]) -> Path:
    model, config = load_model(reference)

    def predicate(name: str, module: Any) -> Any:
        if not callable(getattr(module, "to_quantized", None)):
            return False
        return {"bits": levels[1], "group_size": _GROUP} if name in high else True

    model.set_dtype(mx.float16)
    with redirect_stdout(sys.stderr):
        model, config = quantize_model(model, config, _GROUP, levels[0], quant_predicate=predicate)
    save_model(path, model)
    (path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(reference / name, path / name)
    return path
