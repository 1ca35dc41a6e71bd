"""Whole models with kernels and without: logits of tiny ones, decode of an 8B shape.

Knows nothing of single kernels; the verdicts of `kernels.py` say which serve.
"""

import queue
import time
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache

from omlx.custom_kernels.backend import this_backend
from omlx.custom_kernels.records import read_records
from omlx.custom_kernels.selection import Selection
from omlx.engine.build import assemble_loaded
from omlx.engine.config import EngineConfig
from omlx.engine.engine import LocalEngine
from omlx.engine.request import EngineRequest, EngineState, Failed, Finished, Token
from omlx.models.kernels import use_kernels
from omlx.models.load import LoadedModel
from tests.fakes import tiny
from tests.fakes.harness import Harness
from tests.fakes.shapes import QWEN3_8B

FAMILIES = ("llama", "qwen3", "gemma3_text", "qwen3_moe")
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
VOCAB = 49152
PROMPT, STEPS = 256, 64
ROWS = (1, 2, 4, 8, 16)


def cast(model, dtype):
    """The model with all its floats in a type."""

    def changed(p):
        return p.astype(dtype) if mx.issubdtype(p.dtype, mx.floating) else p

    model.update(tree_map(changed, model.parameters()))
    mx.eval(model.parameters())
    return model


def family(name, dtype):
    """A 4-bit model with random weights; the same numbers for each type."""
    model = tiny.build_config({**tiny.CONFIGS[name], **WIDE})
    nn.quantize(model, group_size=64, bits=4)
    return cast(cast(model, mx.bfloat16), dtype)


def step_logits(model, rows, num=8):
    """Logits [num, rows, V] of decode steps on fixed tokens after a prompt."""
    tokens = mx.random.randint(0, tiny.NUM_VOCAB, (rows, 32 + num), key=mx.random.key(rows))
    cache = make_prompt_cache(model)
    model(tokens[:, :32], cache=cache)
    found = [
        model(tokens[:, i : i + 1], cache=cache)[:, -1].astype(mx.float32)
        for i in range(32, 32 + num)
    ]
    mx.eval(found)
    return np.stack([np.array(one) for one in found])


def apart(found, exact):
    """Root mean square of the difference, over that of the logits."""
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


def logits(records, folder):
    """Of each family: how far from float32 without kernels and with them, and what comes back."""
    # All that is verified serves here, also where it is no faster: this is about what it computes.
    kept = [
        replace(one, speedups=dict.fromkeys(one.speedups, 2.0)) for one in read_records(records)
    ]
    found = {}
    for name in FAMILIES:
        model = family(name, mx.bfloat16)
        plain = {rows: step_logits(model, rows) for rows in ROWS}
        wide = family(name, mx.float32)
        served = use_kernels(model, Selection(this_backend(), kept))
        errors = {}
        for rows in ROWS:
            exact, with_kernels = step_logits(wide, rows), step_logits(model, rows)
            errors[rows] = {
                "plain": apart(plain[rows], exact),
                "kernels": apart(with_kernels, exact),
                "between": apart(with_kernels, plain[rows]),
            }
        found[name] = {
            "used": served.used,
            "lacking": served.lacking,
            "rows": errors,
            "restored": restored(model, folder / name),
        }
    return found


def restored(model, folder):
    """A prompt's answer cold and from the store, after a restart: are the logits the same bits?"""
    engine = Harness(model, folder, block_size=32, write_delay_s=0.1)
    try:
        prompt = np.random.default_rng(1).integers(3, tiny.NUM_VOCAB, 200).tolist()
        cold = engine.ask(prompt, 8)
        engine.restart()
        warm = engine.ask(prompt, 8)
    finally:
        engine.stop()
    pairs = list(zip(warm.logits, cold.logits, strict=True))
    return {
        "cached": warm.cached,
        "of": len(prompt),
        "same_tokens": warm.tokens == cold.tokens,
        "same_bits": all(np.array_equal(a, b) for a, b in pairs),
        "apart": max(apart(a, b) for a, b in pairs),
    }


def random_8b(layers):
    """Qwen3-8B's shape in 4 bits, random."""
    mx.random.seed(0)
    config = {**QWEN3_8B, "num_hidden_layers": layers, "vocab_size": VOCAB}
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))

    def scaled(p):
        if p.ndim < 2:
            return p.astype(mx.bfloat16)
        return (mx.random.normal(p.shape, dtype=mx.bfloat16) * p.shape[-1] ** -0.5).astype(
            mx.bfloat16
        )

    model.update(tree_map(scaled, model.parameters()))
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    return model, config


def library_rate(model, rows):
    """Tokens a second of a plain loop over the model, all rows, and ms of building a graph."""
    cache = make_prompt_cache(model)
    prompt = mx.random.randint(0, VOCAB, (rows, PROMPT), key=mx.random.key(1))
    y = mx.argmax(model(prompt, cache=cache)[:, -1:], axis=-1)
    mx.eval(y)
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(STEPS // 2):
            y = mx.argmax(model(y, cache=cache)[:, -1:], axis=-1)
            mx.async_eval(y)
        mx.eval(y)
        best = max(best, rows * (STEPS // 2) / (time.perf_counter() - began))
    began = time.perf_counter()
    lazy = model(y, cache=cache)
    build_ms = 1e3 * (time.perf_counter() - began)
    mx.eval(lazy)
    return {"tokens_per_s": round(best, 1), "build_ms": round(build_ms, 2)}


class Engines:
    """omlx's engine around a loaded model, without its store."""

    def __init__(self, loaded):
        def build(config, *, emit, publish):
            return assemble_loaded(config, loaded, "00" * 32, emit=emit, publish=publish)

        config = EngineConfig("8b", "", cache_enabled=False, warm_up=False, max_active=16)
        self.events = queue.SimpleQueue()
        self.engine = LocalEngine(config, build=build)
        self.engine.start(lambda events: self.events.put((time.perf_counter(), events)))
        while self.engine.state() is not EngineState.READY:
            assert self.engine.state() is not EngineState.FAILED, self.engine.error()
            time.sleep(0.05)
        self.number = 0

    def rate(self, rows, num=96):
        """Tokens a second of so many streams while all of them decode."""
        for _ in range(rows):
            self.number += 1
            tokens = np.random.default_rng(self.number).integers(0, VOCAB, PROMPT).tolist()
            self.engine.submit(EngineRequest(str(self.number), tuple(tokens), num))
        over, counts, times = 0, {}, []
        while over < rows:
            at, events = self.events.get(timeout=60)
            for event in events:
                assert not isinstance(event, Failed), event
                over += isinstance(event, Finished)
                if isinstance(event, Token):
                    counts[event.request_id] = counts.get(event.request_id, 0) + 1
                    if len(counts) == rows and not over:
                        times.append(at)
        return round((len(times) - 1) / (times[-1] - times[0]), 1)

    def stop(self):
        """End it."""
        self.engine.stop(0.0)


def decode(records, layers, left, say):
    """Tokens a second of the shape, plain and with kernels: the library's loop, omlx's engine."""
    model, config = random_8b(layers)
    found = {"layers": layers, "library": {}, "kernels": {}, "engine": {}, "used": {}}
    for rows in ROWS:
        found["library"][rows] = library_rate(model, rows)
    served = use_kernels(model, Selection(this_backend(), read_records(records)))
    found["used"], found["lacking"] = served.used, served.lacking
    for rows in ROWS:
        found["kernels"][rows] = library_rate(model, rows)
        say(f"{rows} rows: {found['library'][rows]} with kernels {found['kernels'][rows]}")
    if left() < 25:
        return found
    engine = Engines(LoadedModel(model, config, VOCAB, 0))
    try:
        for rows in (1, 8):
            engine.rate(rows, 16)  # its shapes are compiled then
            found["engine"][rows] = engine.rate(rows)
    finally:
        engine.stop()
    return found
