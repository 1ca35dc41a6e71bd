#!/usr/bin/env python3
"""On a CUDA machine: omlx against mlx-lm's own server, on random models in the shapes of real ones.

usage: gpu_compare.py TOKENIZER_DIR --out FILE [--parts bf16,4bit,hybrid,kernels] [--total SECONDS]
                      [--kernels FILE] [--tiny]

TOKENIZER_DIR is a model directory whose tokenizer the random models borrow. Parts: an 8B shape in
bf16, the same in 4 bits, its streams alone with the kernels of which FILE has the verdicts (it is
what `omlx kernel build` or kernels.py --records wrote there), and a 27B hybrid shape in 4 bits with
a prompt of 16,700 tokens: cold, the same again, after a restart, and with its tools in another
order. Both servers run with the Python that runs this. Before a part is measured both go through a
short round that is not kept: on a
fresh machine the first to need a kernel waits for its compiler, and both find it then. `--total`
is shared by the parts that are still to come; no round begins and no answer is waited for beyond
it. mlx-lm keeps nothing over a restart: where there is no time for another long prefill, that
prompt counts as one that nothing is known of. A part that is measured is put into FILE at once,
beside those that are there. `--tiny` makes the same families small, to see on any machine that it
runs.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from omlx.bench.compare import compare  # noqa: E402
from omlx.bench.course import Plan  # noqa: E402
from omlx.bench.recipes import shipped_recipe  # noqa: E402
from omlx.bench.result import report_object  # noqa: E402
from omlx.bench.servers import Serve, Server  # noqa: E402
from omlx.bench.sides import Model, OwnSide, PeerSide  # noqa: E402
from omlx.bench.step import Step  # noqa: E402
from omlx.bench.workload import Words  # noqa: E402
from omlx.models.text import TextModel  # noqa: E402
from omlx.settings.places import kernels_path  # noqa: E402

PARTS = ("bf16", "4bit", "hybrid", "kernels")
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json")
# System and tools first, as most models that call tools have them.
TEMPLATE = """\
{%- if tools -%}{{- '<tools>' -}}
{%- for tool in tools -%}{{- '\\n' ~ (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
NUM_VOCAB = 49152
# Prompts of the round that is not kept: beyond a prefill piece, or short where a token takes long.
FIRST_TOKENS = (2_300, 600)
DENSE = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
    "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": NUM_VOCAB,
    "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
# Three of four layers keep a state of 48 heads of 128 × 128 instead of keys and values.
HYBRID = {
    "model_type": "qwen3_5", "hidden_size": 5120, "num_hidden_layers": 64,
    "intermediate_size": 17408, "num_attention_heads": 24, "num_key_value_heads": 4,
    "head_dim": 256, "rms_norm_eps": 1e-6, "vocab_size": NUM_VOCAB,
    "max_position_embeddings": 40960, "tie_word_embeddings": False,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "rope_parameters": {
        "type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
}  # fmt: skip
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
SMALL_HYBRID = {
    **SMALL, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}  # fmt: skip
MAKE_MODEL = """
import json, sys
from pathlib import Path
from scripts.bench.gpu_compare import make_weights
make_weights(json.loads(sys.argv[1]), Path(sys.argv[2]), bits=int(sys.argv[3]))
import mlx.core as mx
mx.clear_streams()
"""


def make_weights(config, path, *, bits):
    """Write a random model with `bits` a weight (16: bf16) that keeps activations bounded.

    One tensor at a time is in memory in full precision, so that a large model fits.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten, tree_map_with_path

    from tests.fakes import tiny

    mx.random.seed(0)
    family = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = family.Model(family.ModelArgs.from_dict(config))

    def scaled(name, value):
        if name.endswith("A_log"):
            return value  # the recurrence keeps it in float32
        if value.ndim != 2:
            return value.astype(mx.bfloat16)
        noise = mx.random.normal(value.shape, dtype=mx.bfloat16)
        return noise * (1.0 / value.shape[-1] ** 0.5)

    model.update(tree_map_with_path(scaled, model.parameters()))
    if bits < 16:
        nn.quantize(model, group_size=64, bits=bits)
        config = {**config, "quantization": {"group_size": 64, "bits": bits}}
    for _, value in tree_flatten(model.parameters()):
        mx.eval(value)
    tiny.save(model, path, config)


def make_model(part, folder, tokenizer, *, is_tiny):
    """A model folder of a part, made by a process of its own that leaves no memory behind."""
    config = dict(HYBRID if part == "hybrid" else DENSE)
    if is_tiny:
        config |= SMALL_HYBRID if part == "hybrid" else SMALL
    path = folder / f"random-{part}"
    bits = 16 if part == "bf16" else 4
    command = [sys.executable, "-c", MAKE_MODEL, json.dumps(config), str(path), str(bits)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    for name in TEXT_FILES:
        shutil.copy(tokenizer / name, path / name)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text('{"eos_token_id": 2}')
    return path


def plan_of(part, *, limit_s, is_tiny):
    """What is measured of a part; sizes in tokens."""
    dense = ("cold", "again", "more", "restart", "streams", "memory")
    if part == "kernels":
        reply = 8 if is_tiny else 256
        return Plan(
            ("streams",), streams=(1, 8), stream_tokens=64, stream_reply=reply, limit_s=limit_s
        )
    if part == "hybrid":
        cases = ("cold", "again", "swapped", "restart", "memory")
        head = 1_500 if is_tiny else 16_100  # what tools are wrapped in makes it 16,700
        return Plan(cases, head_tokens=head, num_tools=12, limit_s=limit_s)
    if is_tiny:
        return Plan(dense, head_tokens=600, streams=(1, 2), stream_reply=8, limit_s=limit_s)
    return Plan(dense, head_tokens=16_000, stream_tokens=256, stream_reply=128, limit_s=limit_s)


def first_plan_of(plan):
    """The same kinds of work, shortly: what a fresh machine compiles for them."""
    cases = tuple(case for case in plan.cases if case not in ("restart", "memory"))
    head = min(plan.head_tokens, FIRST_TOKENS[plan.num_tools > 0])
    return replace(plan, cases=cases, head_tokens=head, stream_reply=16, seed=plan.seed + 1)


class KernelSide(OwnSide):
    """omlx with the verdicts on kernels that were found on this machine."""

    def __init__(self, records, *args):
        super().__init__(*args)
        self._records = records
        self._folder = None

    def start(self):
        self.close()
        self._folder = tempfile.TemporaryDirectory(prefix="omlx-bench-")
        home = Path(self._folder.name)
        kernels_path(home).parent.mkdir(parents=True)
        shutil.copy(self._records, kernels_path(home))
        self._server = Server(Serve((self.model.folder,), self.settings), home=home, name=self.name)
        ready_s = self._server.start()
        say(Step(f"kernels in use: {self._server.model_status(self.model.model_id)}", 0, 0))
        return ready_s

    def close(self):
        super().close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def sides_of(model, streams, records):
    """Both servers; mlx-lm's own runs with the Python and the libraries that run this."""
    recipe = shipped_recipe("mlx-lm")
    paths = {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    recipe = replace(recipe, env={**recipe.env, **paths}, ready_s=400)
    settings = {"cache.min_free": "1GB", "cache.max_size": "20GB"}
    own = KernelSide(records, model, settings) if records else OwnSide(model, settings)
    return [own, PeerSide(recipe, model, None, streams)]


class Clock:
    """How long the part's steps take, and whether there is time for another."""

    def __init__(self, seconds):
        self.ends_at = time.monotonic() + seconds
        self.last = time.monotonic()
        self.longest_step = 0.0

    def left(self):
        return self.ends_at - time.monotonic()

    def stepped(self):
        now = time.monotonic()
        self.longest_step = max(self.longest_step, now - self.last)
        self.last = now


def measure(part, tokenizer, *, seconds, is_tiny, records, num_rounds=3):
    """The report of one part as plain values, of as many rounds as the seconds allow."""
    clock = Clock(seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = make_model(part, folder, tokenizer, is_tiny=is_tiny)
        made_s = seconds - clock.left()
        model = Model(path, path.name, 40960, folder)
        text = TextModel.load(path)
        words = Words(lambda t: len(text.encode(t)))
        plan = plan_of(part, limit_s=max(30.0, clock.left()), is_tiny=is_tiny)
        own, peer = sides_of(model, max(plan.streams), records if part == "kernels" else None)
        compare([own, peer], first_plan_of(plan), words, num_rounds=1, model=path.name, on_step=say)
        began, clock.last = time.monotonic(), time.monotonic()
        rounds = [0]

        def is_over():
            rounds[0] += 1
            return (time.monotonic() - began) / rounds[0] > clock.left()

        def on_step(step):
            say(step)
            clock.stepped()
            if "swapped" in step.what and peer.name in step.what:
                # It takes as long as a prompt that nothing is known of, and a restart once more.
                peer.can_restart = 2.5 * clock.longest_step < clock.left()

        report = compare(
            [own, peer],
            plan,
            words,
            num_rounds=num_rounds,
            model=path.name,
            is_over=is_over,
            on_step=on_step,
        )
    return {**report_object(report), "made_s": round(made_s, 1)}


def say(step: Step) -> None:
    """Tell how far it is."""
    print(f"{step.done}/{step.total} {step.what}", file=sys.stderr, flush=True)


def device():
    """What it runs on, asked of a process of its own: this one never holds the device."""
    code = (
        "import mlx.core as mx; print(mx.device_info().get('device_name', ''), mx.default_device())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


def keep(out, part, result):
    """Put a part into the file, beside those that are there."""
    kept = json.loads(out.read_text()) if out.exists() else {}
    kept |= {"what": "omlx against mlx_lm.server on a GPU", "device": device()}
    kept.setdefault("parts", {})[part] = result
    out.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS[:-1]))
    parser.add_argument("--total", type=float, default=1500.0)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - {*PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    if "kernels" in parts and not (args.kernels and args.kernels.is_file()):
        parser.error("the part kernels needs --kernels FILE, the verdicts of this machine")
    if not all((args.tokenizer / name).is_file() for name in TEXT_FILES):
        parser.error(f"{args.tokenizer} holds no {' and '.join(TEXT_FILES)}")
    deadline = time.monotonic() + args.total
    kept = {}
    for idx, part in enumerate(parts):
        seconds = (deadline - time.monotonic()) / (len(parts) - idx)
        result = measure(
            part, args.tokenizer, seconds=seconds, is_tiny=args.tiny, records=args.kernels
        )
        kept = keep(args.out, part, result)
    print(json.dumps(kept))


if __name__ == "__main__":
    main()
