#!/usr/bin/env python3
"""What quantization costs: KL, perplexity and top-1 agreement on held-out text, by size, ours
against mlx_lm.convert (uniform, mixed recipes) and its dynamic_quant at the same number of bytes.
Prints progress on stderr and one JSON document on the last line.

The package's weights lie on a grid of four bits, which is no question for a quantizer: up to five
bits the reference is dithered by up to half a step of that grid, seeded; above, as it is.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlx.core as mx
import numpy as np
from mlx_lm.convert import convert
from mlx_lm.quant import dynamic_quant
from mlx_lm.utils import load_model, quantize_model, save_model

from omlx.bench.accuracy import held_out_texts
from omlx.bench.machine import describe
from omlx.errors import ModelError
from omlx.models import agreement, corpus
from omlx.models.agreement import Recording
from omlx.models.corpus import Context, Source
from omlx.models.load import load
from omlx.models.quantize.calibration import Calibration
from omlx.models.quantize.plan import Goal
from omlx.models.quantize.run import Options, Quantization
from tests.models import demo_model

DITHERED_UP_TO = 5.0
RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
# Bits of the two levels that dynamic_quant mixes, by the target that they surround.
LEVELS = ((3.5, 2, 4), (4.6, 3, 5), (5.6, 4, 6), (99.0, 5, 8))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def dithered(source: Path, target: Path, seed: int) -> Path:
    """The model with every matrix moved by up to half a step of its grid."""
    shutil.copytree(source, target)
    weights = mx.load(str(source / "model.safetensors"))
    rng = np.random.default_rng(seed)
    for name, array in weights.items():
        if array.ndim == 2:
            groups = np.array(array).reshape(-1, 32)
            width = groups.max(axis=1, keepdims=True) - groups.min(axis=1, keepdims=True)
            noise = rng.uniform(-0.5, 0.5, groups.shape).astype(np.float32) * (width / 15)
            weights[name] = mx.array((groups + noise).reshape(array.shape))
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
    return target


class Judge:
    """A reference's logits on the held-out text, and how near models come to them."""

    def __init__(self, reference: Path, folder: Path, tokens: int) -> None:
        sources = [Source(name, path) for name, path in held_out_texts()]
        self._contexts: list[Context] = corpus.contexts(
            reference, sources, max_tokens=tokens, context=512
        )
        self._file = folder / "logits"
        model = agreement.in_float32(load(reference).model)
        found = agreement.windows(model, self._contexts)
        own = agreement.score(agreement.record(found, self._contexts, self._file))
        self.perplexity = agreement.perplexity(own)

    def judged(self, path: Path) -> dict[str, float]:
        model = agreement.in_float32(load(path).model)
        with Recording(self._file, self._contexts) as reference:
            scores = agreement.score(agreement.windows(model, self._contexts), reference)
        return {
            "kl": float(scores.kl.mean()),
            "perplexity": agreement.perplexity(scores),
            "top1": float(scores.agrees.mean()),
            "bytes": float(weight_bytes(path)),
        }


def weight_bytes(path: Path) -> int:
    files = path.glob("*.safetensors")
    return sum(array.nbytes for file in files for array in mx.load(str(file)).values())


def baselines(
    reference: Path, folder: Path, bits: float, peers: Sequence[str]
) -> Iterator[tuple[str, Path]]:
    """What mlx-lm makes at about so many bits a weight."""
    if "uniform" in peers:
        yield from uniforms(reference, folder, bits)
    if bits == 3.5 and "mixed" in peers:
        for recipe in RECIPES:
            yield recipe, converted(reference, folder / recipe, quant_predicate=recipe)
    if bits >= 3.0 and "dynamic" in peers:
        yield "dynamic_quant", dynamic(reference, folder / "dynamic", bits)


def uniforms(reference: Path, folder: Path, bits: float) -> Iterator[tuple[str, Path]]:
    """One format for all: of so many bits, or the next below, since ours gets the same bytes."""
    # With groups of 64, scales and biases in halves take half a bit.
    uniform = round(bits - 0.5)
    if abs(uniform + 0.5 - bits) < 0.01 and uniform in (2, 3, 4, 5, 6, 8):
        yield f"uniform {uniform}/64", converted(reference, folder / "uniform", q_bits=uniform)
    elif bits in (3.0, 4.0, 6.0, 8.0):
        below = int(bits) - 1 if bits != 8.0 else 6
        yield f"uniform {below}/64", converted(reference, folder / "uniform", q_bits=below)


def converted(reference: Path, target: Path, **options: Any) -> Path:
    with redirect_stdout(sys.stderr):
        convert(str(reference), str(target), quantize=True, q_group_size=64, dtype="float16",
                **options)  # fmt: skip
    return target


def dynamic(reference: Path, target: Path, bits: float) -> Path:
    """mlx_lm.quant.dynamic_quant with our calibration text, as its command does it."""
    _, low, high = next(level for level in LEVELS if bits <= level[0])
    model, config = load_model(reference)
    data = mx.array(list(Calibration.load(reference, None, max_tokens=2048).sequences))
    sizes = {"low_group_size": 64, "high_group_size": 64, "low_bits": low, "high_bits": high}
    found = dict(dynamic_quant.estimate_sensitivities(model, data, batch_size=2, **sizes))
    with redirect_stdout(sys.stderr):
        threshold = dynamic_quant.estimate_threshold(model, found, target_bpw=bits, **sizes)

    def predicate(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized"):
            return False
        return {"bits": high, "group_size": 64} if found[path] > threshold else True

    model.set_dtype(mx.float16)
    model, config = quantize_model(model, config, 64, low, quant_predicate=predicate)
    save_model(target, model)
    (target / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(reference / name, target / name)
    return target


class Ours:
    """Our own, measured once for all sizes."""

    def __init__(self, reference: Path, folder: Path, tokens: int, seed: int) -> None:
        self.reference, self._folder, self._tokens, self._seed = reference, folder, tokens, seed
        self._run("base", Goal(bits=8.0), plans_only=True)

    def made(self, name: str, goal: Goal) -> Path:
        work = self._folder / f".{name}.quantize"
        shutil.copytree(self._folder / ".base.quantize", work)
        self._run(name, goal, plans_only=False)
        return self._folder / name

    def _run(self, name: str, goal: Goal, *, plans_only: bool) -> None:
        options = Options(
            self.reference, self._folder / name, goal, tokens=self._tokens,
            dtype="float16", plans_only=plans_only, seed=self._seed,
        )  # fmt: skip
        Quantization(options, lambda *_: None).run()


def run_seed(args: argparse.Namespace, seed: int, bits_list: list[float]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="omlx-quantize-") as name:
        folder = Path(name)
        for is_dithered in (True, False):
            wanted = [b for b in bits_list if (b <= DITHERED_UP_TO) is is_dithered]
            if not wanted or (not is_dithered and seed):
                continue
            here = folder / str(is_dithered)
            here.mkdir()
            reference = dithered(demo_model(), here / "m", seed) if is_dithered else demo_model()
            judge = Judge(reference, here, args.tokens)
            started = time.monotonic()
            ours = Ours(reference, here, args.calibration_tokens, seed)
            say(f"seed {seed}: measured in {time.monotonic() - started:.0f} s")
            for bits in wanted:
                shared = {"bits": bits, "seed": seed, "dithered": is_dithered}
                rows += compared(here, judge, ours, shared, args.peers.split(","))
    return rows


def compared(
    folder: Path, judge: Judge, ours: "Ours", shared: Mapping[str, Any], peers: Sequence[str]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(side: str, path: Path, **more: Any) -> dict[str, float]:
        found = judge.judged(path)
        rows.append({**shared, "side": side, **more, **found})
        say(f"{shared['bits']} bits, {side}: KL {found['kl']:.4f} at {found['bytes'] / 1e6:.1f} MB")
        return found

    try:
        path = ours.made(f"ours-{shared['bits']}", Goal(bits=shared["bits"]))
    except ModelError as error:  # what can't be reached is a row, too
        rows.append({**shared, "side": "ours", "error": error.message})
        say(f"{shared['bits']} bits, ours: {error}")
        return rows
    own = add("ours", path)
    for side, theirs in baselines(ours.reference, folder / "peer", shared["bits"], peers):
        found = add(side, theirs)
        shutil.rmtree(theirs)
        if 0.995 * found["bytes"] <= own["bytes"] <= found["bytes"]:
            rows.append({**shared, "side": "ours", "same_size_as": side, **own})
            continue
        name = f"ours-{shared['bits']}-{side.replace('/', '-').replace(' ', '-')}"
        add("ours", ours.made(name, Goal(size_bytes=int(found["bytes"]))), same_size_as=side)
        shutil.rmtree(folder / name)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", default="2,2.5,3,3.5,4,4.5,5,6,8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--peers", default="uniform,mixed,dynamic")
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    args = parser.parse_args()
    bits = [float(one) for one in args.bits.split(",")]
    rows = [row for seed in range(args.seeds) for row in run_seed(args, seed, bits)]
    document = {
        "machine": describe(),
        "options": vars(args),
        "model": "SmolLM2-135M-Instruct",
        "rows": rows,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
