"""Point 9: `cache inspect` and `cache prune`, also beside a running server."""

import json
from pathlib import Path

from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import ask, words
from tests.live import Live, run_omlx, wait_until


def inspect(home: Path) -> dict:
    done = run_omlx("cache", "inspect", "--json", home=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_inspect_and_prune_beside_a_server(
    tiny_model: Path, tmp_path: Path, figure: Figure
) -> None:
    with Live("--model-dir", str(tiny_model.parent), home=tmp_path) as live:
        text = words(1500, 31)
        size, _, _ = ask(live, "tiny", text)
        ask(live, "tiny", text)
        wait_until(lambda: live.model_status()["counters"]["blocks_written"] >= size // 256 + 1)
        report = inspect(tmp_path)
        plain = run_omlx("cache", "inspect", home=tmp_path).stdout
        assert "tiny" in plain
        (model,) = report["models"]
        disk = model["disk"]
        assert disk["blocks"] == size // 256 + 1 and disk["tails"] == 1, model
        assert disk["tokens"] >= size
        assert disk["bytes"] > 0 and model["memory"]["bytes"] > 0
        assert model["hits"]["memory_tokens"] == size - 1, model
        dry = run_omlx("cache", "prune", "--all", "--dry-run", "--json", home=tmp_path)
        would_go = [f for f in json.loads(dry.stdout)["files"] if f.endswith(".safetensors")]
        assert len(would_go) == size // 256 + 1
        assert inspect(tmp_path)["models"][0]["disk"] == disk, "dry run removes nothing"
        half = disk["bytes"] // 2
        done = run_omlx("cache", "prune", "--max-size", f"{half}B", home=tmp_path)
        assert done.returncode == 0, done.stderr
        after = inspect(tmp_path)["models"][0]["disk"]["bytes"]
        assert after <= half
        _, cached, _ = ask(live, "tiny", text)
        assert cached == size - 1, "memory still has it"
        assert run_omlx("cache", "prune", "--older-than", "1d", home=tmp_path).returncode == 0
        assert run_omlx("cache", "prune", "--model", "tiny", home=tmp_path).returncode == 0
        assert not list(tmp_path.rglob("*.safetensors"))
        _, cached, _ = ask(live, "tiny", text)
        assert cached == size - 1
    assert run_omlx("cache", "prune", home=tmp_path).returncode == 2, "needs a criterion"
    figure(
        f"{disk['blocks']} blocks, {disk['tails']} tail, {disk['tokens']} tokens, "
        f"{disk['bytes']} B; pruned to {after} B, then to 0 beside the server"
    )
