"""Point 7, the cases M4, M7, M9, M10 and M12, and the unload part of point 6."""

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.engines.streams import (
    Stream,
    Streams,
    ask,
    is_gone,
    model,
    send,
    send_signal,
    wait_state,
)
from tests.acceptance.serve.test_03_restart import words
from tests.live import Live, chat, run_omlx, wait_until

APIS = ("/v1/chat/completions", "/v1/messages")
LONG = 3_000  # words, whose prefill is of many steps


@pytest.fixture(scope="module")
def two(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two models: one and two."""
    folder = tmp_path_factory.mktemp("two")
    for name in ("one", "two"):
        shutil.copytree(tiny_model, folder / name)
    return folder


def test_m4_second_model_evicts_the_first(demo: Path, tmp_path: Path, figure: Figure) -> None:
    size = sum(file.stat().st_size for file in demo.glob("*.safetensors"))
    for name in ("one", "two"):
        shutil.copytree(demo, tmp_path / "models" / name)
    args = ("--model-dir", str(tmp_path / "models"), "--memory-limit", str(int(1.5 * size)))
    pids: list[int] = []
    most = 0
    with Live(*args, home=tmp_path) as live:
        texts: dict[str, set[str]] = {"one": set(), "two": set()}
        for turn in range(20):
            name = ("one", "two")[turn % 2]
            texts[name].add(ask(live, name))
            pids.append(model(live, name)["pid"])
            most = max(most, sum(m["pid"] is not None for m in live.status()["models"]))
            assert all(is_gone(pid) for pid in pids[:-1]), "the one before is gone"
        assert {len(found) for found in texts.values()} == {1}
        assert live.status()["requests"]["failed"] == 0
    assert most == 1 and len(set(pids)) == 20
    figure("M4: 20 alternate requests where one of two models fits: 20 loads, never two at once")


def test_m7_no_unload_while_a_request_lives(two: Path, tmp_path: Path, figure: Figure) -> None:
    """In queue, in prefill, in decode, with a time-to-live far below the requests' time."""
    args = ("--model-dir", str(two), "--ttl", "0.5s", "--max-concurrent-requests", "1")
    with Live(*args, home=tmp_path) as live:
        ask(live, "one")
        wait_state(live, "one", "unloaded", 20)
        streams = Streams(live)
        streams.start(Stream(chat("one", words(3000, 5), max_tokens=1200)))
        wait_until(lambda: model(live, "one")["prefilling"] == 1)
        streams.start(Stream(chat("one", words(1500, 6), max_tokens=600)))
        pid = model(live, "one")["pid"]
        streams.join()
        assert [s.errors for s in streams.streams] == [[], []]
        seconds = streams.streams[1].times[-1] - streams.streams[0].times[0]
        assert seconds > 1.5
        assert live.status()["requests"]["failed"] == 0
        wait_until(lambda: is_gone(pid), 20)
    figure(
        f"M7: ttl 0.5 s: prefill, queue and {seconds:.1f} s of decode kept the engine; then gone"
    )


def test_m9_client_is_gone(demo: Path, tmp_path: Path, figure: Figure) -> None:
    """Also a client that goes while its engine is being started again.

    What is computed when its client goes ends with its step, and a step is a small part of the
    prompt: idle again is judged by how long the whole prompt takes on the same machine.
    """
    worst = 0.0
    with Live("--model-dir", str(demo), "--max-concurrent-requests", "1", home=tmp_path) as live:

        def counts() -> tuple[int, int, int]:
            m = model(live, demo.name)
            return m["waiting"] + m["loading"], m["prefilling"], m["decoding"]

        def is_idle() -> bool:
            return counts() == (0, 0, 0) and live.status()["requests"]["active"] == 0

        began = time.monotonic()
        ask(live, demo.name, words(LONG, 99))
        whole = time.monotonic() - began
        for number, path in enumerate(APIS):
            for is_stream in (True, False):
                seed = 10 * number + is_stream
                for place, text, most in ((1, words(LONG, seed), 4), (2, f"Story {seed}.", 900)):
                    body = {**chat(demo.name, text, max_tokens=most), "stream": is_stream}
                    sock = send(live, path, body)
                    wait_until(lambda at=place: counts()[at] == 1)
                    queued = send(live, path, {**body, "messages": chat("x", "Wait.")["messages"]})
                    wait_until(lambda: counts()[0] == 1)
                    for one in (queued, sock):
                        one.close()
                    closed = time.monotonic()
                    wait_until(is_idle)
                    worst = max(worst, time.monotonic() - closed)
        sock = send(live, APIS[0], chat(demo.name, "Tell a story.", max_tokens=900))
        wait_until(lambda: counts()[2] == 1)
        send_signal(live, demo.name, signal.SIGKILL)
        wait_until(lambda: model(live, demo.name)["state"] != "ready")
        sock.close()
        wait_until(lambda: live.status()["requests"]["active"] == 0)
        wait_state(live, demo.name, "ready")
        # It was put to the new engine before it was known that nobody waits for it.
        wait_until(lambda: model(live, demo.name)["requests"] == 0)
        ask(live, demo.name)
    assert worst < whole / 6
    figure(
        f"M9: 16 clients gone in queue, prefill, decode, both APIs: idle after {worst:.2f} s, "
        f"where a whole prompt takes {whole:.1f} s"
    )


def test_m10_alive_but_dead(two: Path, tmp_path: Path, figure: Figure) -> None:
    args = ("--model-dir", str(two / "one"), "--stall-timeout", "6s")
    with Live(*args, home=tmp_path) as live:
        assert live.get("/health")["models"][0]["last_step_age_s"] < 3
        streams = Streams(live)
        streams.start(Stream(chat("one", "Go on.", max_tokens=3000)))
        wait_until(lambda: len(streams.streams[0].texts) > 20)
        send_signal(live, "one", signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: live.get("/health")["status"] == "stalled", 20)
        stalled_s = time.monotonic() - stopped
        seen = live.get("/health")["models"][0]
        assert seen["is_stalled"] and seen["last_step_age_s"] > 2
        wait_until(lambda: model(live, "one")["restarts"] == 1, 20)
        restarted_s = time.monotonic() - stopped
        streams.join()
        assert streams.streams[0].errors == []
        live.wait_ready()
    figure(
        f"M10: a stopped engine: health says stalled after {stalled_s:.1f} s, it is started again "
        f"after {restarted_s:.1f} s, and the stream ends well"
    )


def test_m12_a_load_can_be_cancelled(two: Path, tmp_path: Path, figure: Figure) -> None:
    """A load is tracked from its start, an unload ends it, and what it took is back."""
    with Live("--model-dir", str(two), "--max-loaded-models", "1", home=tmp_path) as live:
        answers: list[tuple[int, object]] = []
        thread = threading.Thread(
            target=lambda: answers.append(live.post("/v1/models/one/load", {}))
        )
        thread.start()
        wait_until(lambda: model(live, "one")["pid"] is not None)
        pid = model(live, "one")["pid"]
        assert model(live, "one")["state"] in ("starting", "loading")
        started = time.monotonic()
        status, answer = live.post("/v1/models/one/unload", {})
        assert (status, answer["state"]) == (200, "unloaded") and is_gone(pid)
        seconds = time.monotonic() - started
        thread.join(30)
        assert answers and answers[0][0] == 503, "whoever asked for the load is told"
        ask(live, "two")
        done = run_omlx("model", "load", "one", home=tmp_path)
        assert done.stdout == "one: ready\n", done
        assert model(live, "two")["state"] == "unloaded"
    figure(f"M12: a load cancelled within {seconds:.2f} s, its process gone, not counted after")


def test_m6_unload_returns_everything(two: Path, tmp_path: Path, figure: Figure) -> None:
    with Live("--model-dir", str(two), home=tmp_path) as live:
        ask(live, "one", words(2000, 8))
        pid = model(live, "one")["pid"]
        status, _ = live.post("/v1/models/one/unload", {})
        assert status == 200 and is_gone(pid)
        assert model(live, "one")["pid"] is None
    figure("unload: the process is gone when the answer comes")
