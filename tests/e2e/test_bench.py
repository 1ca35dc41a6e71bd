"""`omlx bench` as users run it, small: each command against servers that it starts itself."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live import REPOSITORY, Live, command, run_omlx
from tests.models import demo_model, tiny_served_model

pytestmark = pytest.mark.timeout(300)


def _bench(home: Path, *args: str) -> Any:
    """The document of a run, which is the last line and all of stdout."""
    done = run_omlx("bench", *args, "--json", home=home, timeout_s=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def _found(report: Any, name: str, **case: object) -> list[Any]:
    return [
        one
        for one in report["measures"]
        if one["name"] == name and all(one["case"].get(key) == case[key] for key in case)
    ]


def test_throughput_of_the_demo_model(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report = _bench(
        tmp_path / "home",
        "throughput",
        *("--model", str(demo_model()), "--tokens", "32,64,16k"),
        *("--decode", "4", "--rounds", "1", "--html", str(page)),
    )
    assert (report["kind"], report["model"]) == ("throughput", demo_model().name)
    for name in ("prefill", "decode", "ttft"):
        found = _found(report, name)
        places = [(one["case"]["tokens"], one["case"]["transport"]) for one in found]
        assert places == [
            (32, "in process"), (64, "in process"), (32, "HTTP"), (64, "HTTP")
        ]  # fmt: skip
        assert all(one["samples"][0] > 0 for one in found)
        labels = [one["label"] for one in found]
        assert labels == [{"process": "warm", "start": "miss", "concurrency": 1}] * 4
    # Its window has 8,192 tokens; no other count differs from what was meant.
    assert report["notes"] == ["longer than the model's window of 8,192 tokens: 16,384"]
    assert page.read_text().startswith("<!doctype html>")


def test_concurrency_of_a_tiny_model(tmp_path: Path) -> None:
    model = tiny_served_model(tmp_path)
    report = _bench(
        tmp_path / "home",
        "concurrency",
        *("--model", str(model), "--streams", "1,3", "--tokens", "32"),
        *("--decode", "32", "--rounds", "1"),
    )
    for name, number in (("ttft", 1), ("stream decode", 1), ("itl", 31)):
        found = _found(report, name)
        assert [one["label"]["concurrency"] for one in found] == [1, 3]
        # Text of several tokens may come in one event, never the other way round.
        for one, streams in zip(found, (1, 3), strict=True):
            assert 0 < len(one["samples"]) <= number * streams
    alone = _found(report, "decode")[0]
    share = _found(report, "bandwidth fraction")[0]
    facts = report["sides"]["omlx"]
    bound = facts["read_bytes_per_s"] / facts["step_shared_bytes"]
    assert share["samples"][0] == pytest.approx(alone["samples"][0] / bound)
    weights = (model / "model.safetensors").stat().st_size
    assert 0 < facts["step_shared_bytes"] <= weights


def test_the_tiers_of_the_cache(tmp_path: Path) -> None:
    report = _bench(
        tmp_path / "home",
        "cache",
        *("--kinds", "full", "--tokens", "600", "--rates", "20MB", "--rounds", "1"),
    )
    assert [check["passed"] for check in report["checks"]] == [True] * len(report["checks"])
    labels = {
        (one["case"]["step"], one["case"]["disk"]): f"{label['process']} {label['start']}"
        for one in _found(report, "ttft")
        for label in [one["label"]]
    }
    half = labels.pop(("half the memory", "as it is"))
    assert half in ("warm disk", "warm memory", "warm mixed")
    assert labels == {
        ("first request", "as it is"): "cold miss",
        ("miss", "as it is"): "warm miss",
        ("memory hit", "as it is"): "warm memory",
        ("memory hit again", "as it is"): "warm memory",
        ("restart", "as it is"): "cold disk",
        ("disk hit", "as it is"): "warm disk",
        ("restart", "20 MB/s"): "cold disk",
        ("disk hit", "20 MB/s"): "warm disk",
    }
    # 599 tokens of 8 layers of 4 heads of 64 keys and values in float32, at 20 MB a second.
    state_bytes = 599 * 8 * 4 * 64 * 2 * 4
    slow = _found(report, "ttft", step="disk hit", disk="20 MB/s")[0]["samples"][0]
    assert slow >= 0.9 * state_bytes / 20e6
    for step in ("memory hit", "disk hit", "restart"):
        assert _found(report, "uncached", step=step)[0]["samples"] == [1]
    assert {ratio["side"] for ratio in report["ratios"]} == {"memory hit", "disk hit", "restart"}


def test_a_server_that_runs_already(tmp_path: Path) -> None:
    model = tiny_served_model(tmp_path)
    home = tmp_path / "home"
    with Live("--model-dir", str(model), "--api-key", "secret", home=home, wait=False) as live:
        url = f"http://127.0.0.1:{live.port}"
        report = _bench(
            tmp_path / "other",
            "cache",
            *("--url", url, "--key", "secret", "--tokens", "64", "--rounds", "1"),
        )
        refused = run_omlx("bench", "cache", "--url", url, home=tmp_path / "other")
    assert report["model"] == "tiny"
    assert [one["case"]["step"] for one in _found(report, "uncached")] == ["miss", "repeat"]
    assert _found(report, "uncached", step="repeat")[0]["samples"] == [1]
    assert refused.returncode == 1
    assert "error: " + url + " answers with 401" in refused.stderr
    assert "hint: --key" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_bench_that_is_ended_leaves_no_server(tmp_path: Path, number: int) -> None:
    model = tiny_served_model(tmp_path)
    args = ("bench", "concurrency", "--model", str(model), "--streams", "2", "--decode", "4000")
    bench = subprocess.Popen(
        command(*args),
        cwd=REPOSITORY,
        env={**os.environ, "OMLX_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert bench.stderr is not None
    for line in bench.stderr:
        if "2 at once" in line:
            break
    family = psutil.Process(bench.pid).children(recursive=True)
    assert len(family) >= 2  # a server and its engine
    bench.send_signal(number)
    _, said = bench.communicate(timeout=60)
    assert bench.returncode == 130, said
    deadline = time.monotonic() + 20
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [*tmp_path.glob("omlx-bench-*")] == []
