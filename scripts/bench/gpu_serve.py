#!/usr/bin/env python3
"""On a CUDA machine: the GPU tests, both overhead ratios, and an 8B-shaped bf16 model over HTTP.

usage: gpu_serve.py TOKENIZER_DIR OUT.json

TOKENIZER_DIR is a model directory whose tokenizer and template the random model borrows.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
MAKE_MODEL = """
import sys
from pathlib import Path
from tests.fakes import tiny
from tests.fakes.shapes import QWEN3_8B, random_8b
tiny.save(random_8b(num_vocab=49152).model, Path(sys.argv[1]), {**QWEN3_8B, "vocab_size": 49152})
import mlx.core as mx
mx.clear_streams()
"""


def sh(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True)


def gpu_tests() -> dict[str, object]:
    done = sh("-m", "pytest", "tests/gpu/test_8b.py", "-m", "gpu", "-q", "-s", "-p", "no:randomly")
    print(done.stdout[-4000:], file=sys.stderr)
    counts = {w: int(n) for n, w in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    lines = [line for line in done.stdout.splitlines() if "ttft cold" in line]
    return {
        "passed": counts.get("passed", 0),
        "failed": counts.get("failed", 0) + counts.get("error", 0),
        "ttft": lines,
    }


def overhead() -> dict[str, object]:
    done = sh("scripts/bench/overhead.py", "--prompt", "16384", "--decode", "192", "--pairs", "10")
    print(done.stderr[-3000:], file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def served(tokenizer: Path, num_words: int) -> dict[str, object]:
    import numpy as np

    from tests.live import Live, chat

    words = ["river", "stone", "tree", "yellow", "black", "white", "blue", "green", "red", "done"]
    text = " ".join(np.random.default_rng(1).choice(words, num_words))

    def ask(live: Live) -> tuple[int, int, float, str]:
        body = {**chat("random-8b", text, max_tokens=16), "stream_options": {"include_usage": True}}
        first, usage, content = 0.0, {}, ""
        for at, line in live.stream("/v1/chat/completions", body):
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            piece = "".join(c["delta"].get("content") or "" for c in chunk["choices"])
            if piece and not first:
                first = at
            content += piece
            usage = chunk.get("usage") or usage
        return (
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            first,
            content,
        )

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "models" / "random-8b"
        made = sh("-c", MAKE_MODEL, str(model))
        assert made.returncode == 0, made.stderr
        for name in TEXT_FILES:
            shutil.copy(tokenizer / name, model / name)
        (model / "generation_config.json").write_text('{"eos_token_id": 2}')
        args = (
            "--model-dir",
            str(model.parent),
            "--cache-min-free",
            "1GB",
            "--cache-max-size",
            "20GB",
        )
        home = Path(folder) / "home"
        with Live(*args, home=home) as live:
            warm_up = ask(live)
            del warm_up
        shutil.rmtree(home / "cache")
        with Live(*args, home=home) as live:
            size, cached, cold_s, cold = ask(live)
            assert cached == 0
            _, again_cached, again_s, again = ask(live)
        with Live(*args, home=home) as live:
            _, restart_cached, restart_s, restart = ask(live)
            figures = live.model_status()
    return {
        "prompt_tokens": size,
        "cold_ttft_s": round(cold_s, 3),
        "again_ttft_s": round(again_s, 3),
        "again_cached": again_cached,
        "text": cold,
        "again_text_equal": again == cold,
        "restart_ttft_s": round(restart_s, 3),
        "restart_cached": restart_cached,
        "restart_text_equal": restart == cold,
        "bytes_read": figures["counters"]["bytes_read"],
    }


def main() -> None:
    tokenizer, out = Path(sys.argv[1]), Path(sys.argv[2])
    tests = gpu_tests()
    ratios = overhead()
    result = {
        "what": "an 8B-shaped random bf16 model on a GPU",
        "machine": ratios["machine"],
        "gpu_tests": tests,
        "overhead": ratios,
        "served": served(tokenizer, 16000),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
