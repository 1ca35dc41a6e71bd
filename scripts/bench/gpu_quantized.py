#!/usr/bin/env python3
"""On a CUDA machine: what `omlx quantize` makes runs in plain mlx-lm and in `omlx serve` there.

usage: gpu_quantized.py TOKENIZER_DIR --out FILE [--model DIR] [--bits B,B] [--device cpu] [--tiny]

TOKENIZER_DIR is a model directory whose tokenizer a random model of SmolLM2-135M's shape borrows;
`omlx quantize` makes a smaller one of it for each of `--bits`. `--model DIR` takes a folder that
is quantized already instead. Each is loaded by mlx_lm.load and generates, answers one chat request
of `omlx serve`, and its logits of a fixed prompt are compared with those that the CPU computes of
the same values in float32. Every format that a plan can choose is multiplied on the device, too.
`--device cpu` does all of it on the CPU, `--tiny` with a small model: to see that it runs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LLAMA = {
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e5, "vocab_size": 49152, "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
PROMPT = "Write down, in order, the steps by which a letter reaches another country."
NUM_PROMPT, NUM_NEW = 64, 24
MAKE_MODEL = """
import json, sys
from pathlib import Path
from scripts.bench.gpu_compare import make_weights
make_weights(json.loads(sys.argv[1]), Path(sys.argv[2]), bits=16)
import mlx.core as mx
mx.clear_streams()
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_self(role: str, *args: str, device: str, timeout_s: float = 400) -> dict:
    """What a role gives, in a process of its own, so that nothing else holds the device."""
    command = [sys.executable, str(Path(__file__).resolve()), "--role", role, *args]
    done = subprocess.run(
        [*command, "--device", device], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{role} on {device} ended with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


# ---- the roles, each the whole work of a process


def role_generate(folder: Path) -> dict:
    """Plain mlx-lm: load and greedy generation."""
    import mlx.core as mx
    from mlx_lm import load, stream_generate

    model, tokenizer = load(str(folder))
    text, last = "", None
    for last in stream_generate(model, tokenizer, PROMPT, max_tokens=NUM_NEW):
        text += last.text
    return {
        "text": text,
        "tokens": last.generation_tokens,
        "prefill_tokens_per_s": round(last.prompt_tps, 1),
        "decode_tokens_per_s": round(last.generation_tps, 1),
        "peak_memory_bytes": mx.get_peak_memory(),
    }


def role_logits(folder: Path, out: Path, *, is_exact: bool) -> dict:
    """Logits of the fixed prompt, kept in `out`; exact: of the expanded values, in float32."""
    import mlx.core as mx
    import numpy as np
    from mlx_lm.utils import load_model

    from omlx.models.agreement import in_float32
    from omlx.models.text import TextModel

    ids = TextModel.load(folder).encode(" ".join([PROMPT] * 8))[:NUM_PROMPT]
    model, _ = load_model(folder)
    if is_exact:
        model = in_float32(model)
    logits = model(mx.array([ids]))[0].astype(mx.float32)
    mx.eval(logits)
    np.save(out, np.array(logits))
    return {"tokens": len(ids), "device": str(mx.default_device())}


def role_formats() -> dict:
    """For each format, the error of a product on this device against the expanded values'."""
    import mlx.core as mx

    from omlx.models.quantize.formats import BY_LABEL

    found: dict[str, object] = {}
    for label, form in BY_LABEL.items():
        columns = 1536
        weight = mx.random.normal((256, columns), key=mx.random.key(1)) / columns**0.5
        how = {"group_size": form.group, "bits": form.bits, "mode": form.mode}
        packed = mx.quantize(weight.astype(mx.float16), **how)
        values = mx.dequantize(*packed, **how).astype(mx.float32)
        errors = {}
        for rows in (1, 8, 64):
            x = mx.random.normal((rows, columns), key=mx.random.key(2)).astype(mx.float16)
            try:
                got = mx.quantized_matmul(x, *packed, transpose=True, **how).astype(mx.float32)
                mx.eval(got)
            except (RuntimeError, ValueError) as error:
                errors[str(rows)] = str(error).splitlines()[0]
                continue
            with mx.stream(mx.cpu):
                wanted = x.astype(mx.float32) @ values.T
                off = mx.sqrt(mx.mean(mx.square(got - wanted)) / mx.mean(mx.square(wanted)))
                errors[str(rows)] = float(off.item())
        found[label] = errors
    return found


def role_device() -> dict:
    """What this runs on."""
    import mlx.core as mx

    return {"device": str(mx.device_info().get("device_name", "")), "at": str(mx.default_device())}


def run_role(args: argparse.Namespace) -> None:
    import mlx.core as mx

    if args.device == "cpu":
        mx.set_default_device(mx.cpu)
    folder = args.model
    match args.role:
        case "generate":
            found = role_generate(folder)
        case "logits" | "exact-logits":
            found = role_logits(folder, args.out, is_exact=args.role == "exact-logits")
        case "formats":
            found = role_formats()
        case _:
            found = role_device()
    print(json.dumps(found))
    sys.stdout.flush()
    mx.clear_streams()


# ---- what the parent does


def make_model(tokenizer: Path, folder: Path, *, is_tiny: bool) -> Path:
    """A random model of the shape, with a tokenizer and a template."""
    config = {**LLAMA, **(SMALL if is_tiny else {})}
    path = folder / "random-135m"
    command = [sys.executable, "-c", MAKE_MODEL, json.dumps(config), str(path)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    for name in TEXT_FILES:
        shutil.copy(tokenizer / name, path / name)
    (path / "generation_config.json").write_text('{"eos_token_id": 2}')
    return path


def quantized(model: Path, bits: float, home: Path, *, is_tiny: bool) -> tuple[Path, float]:
    """What `omlx quantize` makes, and the seconds that it took."""
    out = home / "models" / f"random-{bits:g}bit"
    tokens = "256" if is_tiny else "2048"
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "omlx", "quantize", str(model), "-o", str(out), "--bits", str(bits),
         "--calibration-tokens", tokens],
        cwd=ROOT, env={**os.environ, "OMLX_HOME": str(home)}, check=True, stdout=sys.stderr,
    )  # fmt: skip
    return out, time.monotonic() - started


def served(model: Path, home: Path) -> dict[str, object]:
    """One chat request to `omlx serve`, and the same again, which is cached then."""
    from tests.live import Live, chat

    with Live("--model-dir", str(model.parent), home=home) as live:
        answers = []
        for _ in range(2):
            status, answer = live.post(
                "/v1/chat/completions", chat(model.name, PROMPT, max_tokens=NUM_NEW)
            )
            if status != 200:
                return {"status": status, "answer": answer}
            answers.append(answer)
        stopped = live.stop()
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    usage = answers[1]["usage"]
    return {
        "status": 200, "text": texts[0], "again_equal": texts[0] == texts[1],
        "prompt_tokens": usage["prompt_tokens"],
        "again_cached": usage["prompt_tokens_details"]["cached_tokens"], "exit_code": stopped,
    }  # fmt: skip


def compared(model: Path, folder: Path, device: str) -> dict[str, object]:
    """How far the device's logits are from the CPU's: of their size, and as KL in nats a token."""
    import numpy as np

    files = {"exact": folder / "exact.npy", "here": folder / "here.npy"}
    cpu = run_self("exact-logits", "--model", str(model), "--out", str(files["exact"]),
                   device="cpu")  # fmt: skip
    here = run_self("logits", "--model", str(model), "--out", str(files["here"]), device=device)
    exact, got = (np.load(files[name]).astype(np.float64) for name in ("exact", "here"))
    log_p, log_q = (x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
                    - x.max(-1, keepdims=True) for x in (exact, got))  # fmt: skip
    kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    return {
        "tokens": cpu["tokens"], "devices": [here["device"], cpu["device"]],
        "is_finite": bool(np.isfinite(got).all()),
        "relative_error": float(np.sqrt(np.square(got - exact).mean() / exact.var())),
        "kl_mean": float(kl.mean()), "kl_max": float(kl.max()),
        "top1": float((exact.argmax(-1) == got.argmax(-1)).mean()),
    }  # fmt: skip


def formats_of(model: Path) -> dict[str, object]:
    """The usual format that config.json names, and how many matrices have each other one."""
    entry = json.loads((model / "config.json").read_text())["quantization"]
    others = [one for one in entry.values() if isinstance(one, dict)]

    def label(one: dict) -> str:
        mode = one.get("mode", "affine")
        return f"{one['bits']}/{one['group_size']}" if mode == "affine" else mode

    return {"usual": label(entry), "others": dict(Counter(label(one) for one in others))}


def measured(model: Path, home: Path, device: str) -> dict[str, object]:
    """All that is asked of one quantized folder."""
    say(f"{model.name}: generate")
    result: dict[str, object] = {
        "name": model.name,
        "formats": formats_of(model),
        "nbytes": sum(file.stat().st_size for file in model.glob("*.safetensors")),
        "generate": run_self("generate", "--model", str(model), device=device),
    }
    say(f"{model.name}: logits")
    result["logits"] = compared(model, home, device)
    say(f"{model.name}: omlx serve")
    return {**result, "served": served(model, home)}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--bits", default="3,4.5")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--commit", default="", help="Where this is no checkout.")
    parser.add_argument(
        "--role", choices=("generate", "logits", "exact-logits", "formats", "device")
    )
    args = parser.parse_args()
    if args.role is None:
        if args.out is None:
            parser.error("--out FILE is needed")
        if args.model is None and args.tokenizer is None:
            parser.error("TOKENIZER_DIR is needed to make a model; or give --model DIR")
        if args.tokenizer and not all((args.tokenizer / name).is_file() for name in TEXT_FILES):
            parser.error(f"{args.tokenizer} holds no {' and '.join(TEXT_FILES)}")
    return args


def main() -> None:
    args = parsed()
    if args.role is not None:
        run_role(args)
        return
    from omlx.bench.machine import describe

    machine = describe()
    result: dict[str, object] = {
        "what": "models that omlx quantize made, on a GPU",
        "machine": {**machine, "commit": machine["commit"] or args.commit},
        **run_self("device", device=args.device),
        "formats": run_self("formats", device=args.device),
        "models": [],
    }
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="omlx-quantized-") as name:
        home = Path(name)
        if args.model is not None:
            (home / "models").mkdir()
            copy = home / "models" / args.model.resolve().name
            shutil.copytree(args.model, copy)
            found.append(measured(copy, home, args.device))
        else:
            source = make_model(args.tokenizer, home, is_tiny=args.tiny)
            for bits in (float(one) for one in args.bits.split(",")):
                say(f"omlx quantize --bits {bits:g}")
                model, seconds = quantized(source, bits, home, is_tiny=args.tiny)
                one = measured(model, home, args.device)
                found.append({**one, "bits": bits, "made_s": round(seconds, 1)})
    result["models"] = found
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
