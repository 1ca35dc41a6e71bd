"""Point 5: eight streams while a 4,000-token prefill arrives: all finish, and none is silent for
longer than two prefill chunks (of 512 tokens)."""

import threading
import time
from pathlib import Path

from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import words
from tests.live import Live, chat


def test_no_stream_is_held_up(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    args = ("--model-dir", str(tiny_model.parent), "--prefill-chunk", "512")
    times: dict[int, list[float]] = {}
    long_at: list[float] = []
    with Live(*args, "--max-concurrent-requests", "9", home=tmp_path) as live:

        def stream(i: int) -> None:
            body = chat("tiny", f"stream {i} " + words(20, i), max_tokens=300)
            times[i] = []
            for _, line in live.stream("/v1/chat/completions", body):
                if '"content":' in line:
                    times[i].append(time.monotonic())

        threads = [threading.Thread(target=stream, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        while any(len(times.get(i, [])) < 10 for i in range(8)):
            time.sleep(0.05)
        prefills_before = live.model_status()["tokens_per_s"]["prefill"]
        started = time.monotonic()
        for _, line in live.stream(
            "/v1/chat/completions", chat("tiny", words(3950, 99), max_tokens=2)
        ):
            if '"content":"' in line and '"content":""' not in line:
                long_at.append(time.monotonic())
        rate = live.model_status()["tokens_per_s"]["prefill"]
        for t in threads:
            t.join()
    assert long_at, "the long prompt was answered"
    chunk_s = (long_at[0] - started) / (4000 / 512)
    gaps = {
        i: max(
            b - a
            for a, b in zip(ts, ts[1:], strict=False)
            if a > started - 1 and b < long_at[0] + 1
        )
        for i, ts in times.items()
    }
    assert all(len(ts) >= 50 for ts in times.values())
    worst = max(gaps.values())
    assert worst <= 2 * chunk_s, gaps
    figure(
        f"longest silence {worst:.2f} s, a chunk of 512 takes {chunk_s:.2f} s "
        f"({worst / chunk_s:.2f} chunks); 9 finished; {rate or prefills_before:.0f} tok/s"
    )
