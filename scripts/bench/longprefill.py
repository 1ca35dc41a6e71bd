#!/usr/bin/env python3
"""Peak memory of one long prefill of a tiny recurrent model, with the cache on or off.

Run it in a process of its own for each side: peaks are those of the process. Prints one JSON
document on the last line.
"""

import argparse
import json
import queue
import random
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.engine.build import assemble_loaded
from omlx.engine.config import EngineConfig
from omlx.engine.engine import LocalEngine
from omlx.engine.request import EngineRequest, Failed, Finished
from omlx.models.load import LoadedModel
from scripts.bench.measure import machine
from tests.fakes import tiny

# The last layer's attention is not needed for its state, and so is never computed in a prefill:
# with one layer there is no work that grows with the square of the length, nor its buffers, and
# what snapshots add weighs the more.
SMALLER = {
    "mamba2": {},
    "falcon_h1": {
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "mamba_d_state": 128,
    },
}


def peak_rss_bytes():
    """The most memory that this process has had in use."""
    status = Path("/proc/self/status")
    if status.is_file():  # a child's rusage may begin with its parent's peak there
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def prefill(engine, events, tokens):
    """Run one prompt to its first token; the stats of the request."""
    engine.submit(EngineRequest("long", tokens, 1))
    while True:
        for event in events.get():
            if isinstance(event, Failed):
                raise SystemExit(f"failed: {event.message}")
            if isinstance(event, Finished):
                return event.stats


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SMALLER), default="mamba2")
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--cache", choices=("on", "off"), default="on")
    parser.add_argument("--memory", type=int, help="bytes of the memory tier (default: automatic)")
    parser.add_argument("--interval", type=int, default=4096, help="tokens between two snapshots")
    args = parser.parse_args()
    config = {**tiny.CONFIGS[args.model], **SMALLER[args.model]}
    loaded = LoadedModel(tiny.build_config(config), config, tiny.NUM_VOCAB, 0)
    events = queue.SimpleQueue()
    source = random.Random(1)
    tokens = tuple(source.randrange(3, tiny.NUM_VOCAB) for _ in range(args.tokens))
    with tempfile.TemporaryDirectory() as folder:
        engine_config = replace(
            EngineConfig("bench", "", min_free_bytes=0, cache_dir=folder, warm_up=False),
            cache_enabled=args.cache == "on",
            prefill_chunk=args.chunk,
            memory_bytes=args.memory,
            snapshot_interval=args.interval,
        )
        engine = LocalEngine(
            engine_config,
            build=lambda c, *, emit, publish: assemble_loaded(
                c, loaded, "33" * 32, emit=emit, publish=publish
            ),
        )
        engine.start(events.put)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        started = time.perf_counter()
        prefill(engine, events, tokens)
        seconds = time.perf_counter() - started
        peak, rss = mx.get_peak_memory(), peak_rss_bytes()
        tier_bytes = engine.snapshot().memory.bytes
        assert engine.stop(60.0) == 0
        files = list(Path(folder).rglob("*.safetensors"))
        result = {
            "what": "longprefill",
            "model": args.model,
            "cache": args.cache,
            "tokens": args.tokens,
            "seconds": round(seconds, 1),
            "before_bytes": before,
            "peak_bytes": peak,
            "peak_rss_bytes": rss,
            "tier_bytes": tier_bytes,
            "snapshot_files": sum(".state." in p.name for p in files),
            "block_files": sum(".state." not in p.name for p in files),
            "file_bytes": sum(p.stat().st_size for p in files),
            "machine": machine(),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    finally:
        mx.clear_streams()
