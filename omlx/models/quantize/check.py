"""Measures what a rounded model has lost on the calibration text, again layer by layer.

Knows nothing about how it was rounded: the parts are files of the work folder.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from omlx.models.quantize.formats import BY_LABEL
from omlx.models.quantize.plan import KEPT
from omlx.models.quantize.rounding import Packed
from omlx.models.quantize.runs import Run, Runs, first_input, tail_run, top_matrices, x_file
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Tapped, matrices, number

# What the stubs of mlx leave untyped.
_mx: Any = mx


def measured_kl(runs: Runs, formats: Mapping[str, str]) -> float:
    """KL(original || rounded) on the calibration's batches, in nats a token."""
    layered = runs.open()
    rest = runs.work.get_arrays("part-rest.safetensors")
    _put(layered.model, top_matrices(layered), rest, formats, prefix="")
    hidden = [first_input(layered, batch) for batch in runs.batches]
    _mx.eval(hidden)
    for idx, layer in enumerate(layered.layers):
        parts = runs.work.get_arrays(part_file(idx))
        _put(layer, matrices(layer), parts, formats, prefix=f"{layered.prefix}.{idx}.")
        hidden = [
            runs.visit(layered, idx, batch, x, _plain)
            for batch, x in zip(runs.batches, hidden, strict=True)
        ]
        layered.release(layer)
    original = runs.open()
    outputs = runs.work.get_arrays(x_file(len(original)))
    total, count = 0.0, 0
    for at, batch in enumerate(runs.batches):
        log_p = _log_softmax(_logits(original, batch, outputs[f"b{at}"]))
        log_q = _log_softmax(_logits(layered, batch, hidden[at]))
        total += number(mx.sum(mx.exp(log_p) * (log_p - log_q)))
        count += batch.size
        _mx.clear_cache()
    return total / count


def part_file(idx: int) -> str:
    """The file of a rounded layer."""
    return f"part-{idx:04d}.safetensors"


def _logits(layered: LayeredModel, batch: mx.array, h: mx.array) -> mx.array:
    with Tapped(layered.model, {}) as nothing:
        run, _ = tail_run(layered, nothing, batch)
        return run(h)


def _log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _plain(_: Any, x: mx.array, run: Run) -> mx.array:
    return run(x)


def _put(
    module: Any,
    found: Mapping[str, Any],
    parts: Mapping[str, mx.array],
    formats: Mapping[str, str],
    *,
    prefix: str,
) -> None:
    """Give a module the values that its rounded tensors stand for (mutates it)."""
    new: list[tuple[str, mx.array]] = []
    for name, _ in tree_flatten(module.parameters()):
        if prefix + name not in parts:
            continue  # of another part
        label = formats.get(prefix + name.removesuffix(".weight"), KEPT)
        array = parts[prefix + name]
        if label == KEPT or name.removesuffix(".weight") not in found:
            is_float = mx.issubdtype(array.dtype, mx.floating)
            new.append((name, array.astype(mx.float32) if is_float else array))
            continue
        stem = prefix + name.removesuffix(".weight")
        packed = Packed(array, parts[f"{stem}.scales"], parts.get(f"{stem}.biases"))
        new.append((name, packed.values(BY_LABEL[label])))
    _mx.eval([array for _, array in new])
    module.update(tree_unflatten(new), strict=False)
