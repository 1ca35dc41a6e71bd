"""Measures what a rounded model has lost on the calibration text.

Knows nothing about how it was rounded: what its last layer gives is a file of the work folder.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from omlx.models.quantize.final import put_rounded
from omlx.models.quantize.runs import REST_FILE, Runs, q_file, tail_run, x_file
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Tapped, number

# What the stubs of mlx leave untyped.
_mx: Any = mx


def measured_kl(runs: Runs, formats: Mapping[str, str]) -> float:
    """KL(original || rounded) on the calibration's batches, in nats a token; all is rounded."""
    layered, original = runs.open(), runs.open()
    put_rounded(layered.model, runs.work.get_arrays(REST_FILE), formats, prefix="")
    last = len(original)
    wanted, found = (runs.work.get_arrays(file(last)) for file in (x_file, q_file))
    total, count = 0.0, 0
    for at, batch in enumerate(runs.batches):
        log_p = _log_softmax(_logits(original, batch, wanted[f"b{at}"]))
        log_q = _log_softmax(_logits(layered, batch, found[f"b{at}"]))
        total += number(mx.sum(mx.exp(log_p) * (log_p - log_q)))
        count += batch.size
        _mx.clear_cache()
    return total / count


def _logits(layered: LayeredModel, batch: mx.array, h: mx.array) -> mx.array:
    with Tapped(layered.model, {}) as nothing:
        run, _ = tail_run(layered, nothing, batch)
        return run(h)


def _log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
