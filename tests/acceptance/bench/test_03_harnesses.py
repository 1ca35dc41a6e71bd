"""Point 3: the field's load generators, unmodified, see the times that the journal tells.

`scripts/harnesses` installs them. Each runs against `omlx serve` with the tokenizer of the demo
model's folder; for the same requests its TTFT agrees with the journal's within 5 % + 5 ms.
"""

import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omlx.bench.workload import Words
from omlx.models.text import TextModel
from omlx.storage.history import History
from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY, Live

_INSTALL_S, _RUN_S = 1500, 600
_REQUESTS = 6
_SHARE, _MORE_S = 0.05, 0.005


@dataclass(frozen=True)
class Timed:
    """One request as a harness saw it: when it was sent (seconds of the epoch), and its TTFT."""

    sent: float
    ttft_s: float
    prompt_tokens: int


def harness(name: str) -> Path:
    """The folder of its commands, installed on first use."""
    subprocess.run(
        [str(REPOSITORY / "scripts" / "harnesses"), name], check=True, timeout=_INSTALL_S
    )
    root = os.environ.get("OMLX_TEST_HARNESSES")
    base = Path(root) if root else Path.home() / ".cache" / "omlx-tests" / "harnesses"
    return base / name / "bin"


def run(command: Sequence[str], home: Path) -> None:
    """Run a harness to its end, with a home of its own."""
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        command, env={**env, "HOME": str(home)}, cwd=home,
        capture_output=True, text=True, timeout=_RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@contextmanager
def book(text: str) -> Iterator[str]:
    """The address of a text, served from this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing of each request."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/book.txt"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def llama_benchy(bin_dir: Path, live: Live, demo: Path, folder: Path) -> list[Timed]:
    """Prompts of a book at two sizes; it tells of each request as it comes."""
    text = TextModel.load(demo)
    words = Words(lambda t: len(text.encode(t)))
    events = folder / "events.jsonl"
    with book(" ".join(words.text(2000, seed=f"book {n}") for n in range(4))) as url:
        run(
            [
                str(bin_dir / "llama-benchy"), "--base-url", f"http://127.0.0.1:{live.port}/v1",
                "--model", demo.name, "--tokenizer", str(demo), "--book-url", url,
                "--pp", "256", "1024", "--tg", "16", "--depth", "0", "--runs", str(_REQUESTS // 2),
                "--no-warmup", "--no-adapt-prompt", "--skip-coherence", "--latency-mode", "none",
                "--emit-progress", str(events),
            ],
            folder / "home",
        )  # fmt: skip
    started: dict[int, float] = {}
    first: dict[int, float] = {}
    found: list[Timed] = []
    for line in events.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        match event["type"]:
            case "request_start":
                started[event["request_id"]] = event["ts"]
            case "request_first_token":
                first[event["request_id"]] = event["ttft_s"]
            case "request_end":
                assert not event["error"], event
                number = event["request_id"]
                found.append(Timed(started[number], first[number], event["prompt_tokens"]))
    return found


def aiperf(bin_dir: Path, live: Live, demo: Path, folder: Path) -> list[Timed]:
    """Synthetic prompts, one at a time; its export has a record for each request."""
    out = folder / "artifacts"
    run(
        [
            str(bin_dir / "aiperf"), "profile", "--model", demo.name,
            "--url", f"http://127.0.0.1:{live.port}", "--endpoint-type", "chat", "--streaming",
            "--tokenizer", str(demo), "--isl", "512", "--isl-stddev", "0", "--osl", "16",
            "--request-count", str(_REQUESTS), "--concurrency", "1", "--ui", "none",
            "--artifact-dir", str(out),
        ],
        folder / "home",
    )  # fmt: skip
    (export,) = out.rglob("profile_export.jsonl")
    found: list[Timed] = []
    for line in export.read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        metrics, about = record["metrics"], record["metadata"]
        ttft = metrics["time_to_first_token"]
        assert ttft["unit"] == "ms"
        found.append(
            Timed(
                about["request_start_ns"] / 1e9,
                ttft["value"] / 1e3,
                int(metrics["input_sequence_length"]["value"]),
            )
        )
    return found


@pytest.mark.parametrize("name", ["llama-benchy", "aiperf"])
def test_times_agree_with_the_journal(
    name: str, tmp_path: Path, demo: Path, figure: Figure
) -> None:
    bin_dir = harness(name)
    drive = {"llama-benchy": llama_benchy, "aiperf": aiperf}[name]
    with Live("--model-dir", str(demo.parent), home=tmp_path / "home") as live:
        timed = sorted(drive(bin_dir, live, demo, tmp_path), key=lambda one: one.sent)
    rows = History(tmp_path / "home" / "state" / "journal.sqlite3").of_model(demo.name, 100)
    rows = sorted(rows, key=lambda row: row.time)
    assert len(timed) >= _REQUESTS
    assert len(rows) == len(timed), "what was asked is what was told"
    worst = 0.0
    for seen, row in zip(timed, rows, strict=True):
        assert row.parts is not None
        told = row.parts.ttft_s
        allowed = _SHARE * told + _MORE_S
        worst = max(worst, abs(seen.ttft_s - told) / allowed)
    last, row = timed[-1], rows[-1]
    assert row.parts is not None
    figure(
        f"{name}: {len(timed)} requests, the last {last.ttft_s * 1e3:.1f} ms against "
        f"{row.parts.ttft_s * 1e3:.1f} ms in the journal; worst {worst:.2f} of what is allowed"
    )
    assert worst <= 1
