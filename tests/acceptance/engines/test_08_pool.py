"""Point 8: two models load while a third serves; time-to-live runs out during a request; an unload
races a new request; sixteen clients send the first requests at once."""

import shutil
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
    send_signal,
    wait_state,
)
from tests.live import Live, chat, run_omlx, wait_until


@pytest.fixture(scope="module")
def three(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three models: one, two, three."""
    folder = tmp_path_factory.mktemp("three")
    for name in ("one", "two", "three"):
        shutil.copytree(tiny_model, folder / name)
    return folder


def serve(folder: Path, home: Path, *args: str) -> Live:
    return Live("--model-dir", str(folder), *args, home=home)


def test_two_load_while_a_third_serves(three: Path, tmp_path: Path, figure: Figure) -> None:
    with serve(three, tmp_path) as live:
        ask(live, "one")
        streams = Streams(live)
        streams.start(Stream(chat("one", "Go on.", max_tokens=1500)))
        wait_until(lambda: len(streams.streams[0].texts) > 20)
        texts: dict[str, str] = {}

        def load(name: str) -> None:
            texts[name] = ask(live, name)

        threads = [threading.Thread(target=load, args=(n,)) for n in ("two", "three")]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        wait_until(
            lambda: {model(live, n)["state"] for n in ("two", "three")} <= {"starting", "loading"}
        )
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - started
        streams.join()
        (stream,) = streams.streams
        assert stream.errors == [] and set(texts) == {"two", "three"}
        assert {m["state"] for m in live.status()["models"]} == {"ready"}
        assert ask(live, "two") == texts["two"] and ask(live, "three") == texts["three"]
    during = [b - a for a, b in zip(stream.times, stream.times[1:], strict=False)]
    figure(
        f"both answered after {seconds:.1f} s; longest gap of the stream meanwhile "
        f"{max(during):.2f} s; no error"
    )


def test_ttl_during_a_request(three: Path, tmp_path: Path, figure: Figure) -> None:
    with serve(three, tmp_path, "--ttl", "1s") as live:
        streams = Streams(live)
        streams.start(Stream(chat("one", "Go on.", max_tokens=4000)))
        wait_until(lambda: len(streams.streams[0].texts) > 20)
        pid = model(live, "one")["pid"]
        streams.join()
        (stream,) = streams.streams
        seconds = stream.times[-1] - stream.times[0]
        assert stream.errors == [] and seconds > 2
        ended = time.monotonic()
        wait_until(lambda: is_gone(pid), 30)
        gone_s = time.monotonic() - ended
        assert model(live, "one")["state"] == "unloaded" and gone_s > 0.5
        ask(live, "one")
    figure(f"a stream of {seconds:.1f} s with a ttl of 1 s ended well; gone {gone_s:.1f} s after")


def test_unload_races_a_request(three: Path, tmp_path: Path, figure: Figure) -> None:
    answers = {"unloaded": 0, "in use": 0}
    with serve(three, tmp_path) as live:
        expected = ask(live, "one")
        for turn in range(12):
            wait_state(live, "one", "ready")
            pid = model(live, "one")["pid"]
            texts: list[str] = []
            thread = threading.Thread(target=lambda into=texts: into.append(ask(live, "one")))
            if turn % 2:
                thread.start()
                time.sleep(0.002 * turn)
            status, answer = live.post("/v1/models/one/unload", {})
            if not turn % 2:
                thread.start()
            thread.join()
            assert texts == [expected]
            if status == 200:
                answers["unloaded"] += 1
                assert answer["state"] in ("unloaded", "starting", "loading", "ready")
                assert is_gone(pid)
            else:
                answers["in use"] += 1
                assert status == 409 and "1 request" in answer["error"]["message"]
        assert live.status()["requests"]["failed"] == 0
    figure(f"12 races: {answers}; every request had its answer")


def test_sixteen_first_requests(three: Path, tmp_path: Path, figure: Figure) -> None:
    with serve(three, tmp_path) as live:
        assert model(live, "one")["state"] == "unloaded"
        streams = Streams(live)
        streams.start(*(Stream(chat("one", f"Hello {i}.", max_tokens=8)) for i in range(16)))
        streams.join()
        assert [s.errors for s in streams.streams] == [[]] * 16
        loads = [line for line in live.lines if "[one]" in line and "loaded" in line]
        assert len(loads) == 1, loads
        assert model(live, "two")["state"] == "unloaded"
    figure("16 clients at once: one load, 16 answers")


def test_the_command_line(three: Path, tmp_path: Path, figure: Figure) -> None:
    with serve(three, tmp_path) as live:
        done = run_omlx("model", "load", "two", home=tmp_path)
        assert (done.returncode, done.stdout) == (0, "two: ready\n"), done
        pid = model(live, "two")["pid"]
        done = run_omlx("model", "unload", "two", home=tmp_path)
        assert (done.returncode, done.stdout) == (0, "two: unloaded\n"), done
        assert is_gone(pid)
        done = run_omlx("model", "load", "none", home=tmp_path)
        assert done.returncode == 1 and "no running server has the model 'none'" in done.stderr
    done = run_omlx("model", "load", "two", home=tmp_path)
    assert done.returncode == 1 and "no server is running" in done.stderr
    figure("model load and unload: ready, then the process is gone; clear errors")


def test_a_second_death_ends_one_request_only(three: Path, tmp_path: Path, figure: Figure) -> None:
    """The only one that is in work at two deaths is given up and refused from then on."""
    with serve(three, tmp_path) as live:
        body = chat("one", "Go on.", max_tokens=6000)
        streams = Streams(live)
        streams.start(Stream(body))
        for _ in range(2):
            number = len(streams.streams[0].texts)
            wait_until(lambda n=number: len(streams.streams[0].texts) > n + 20, 120)
            send_signal(live, "one", 9)
        streams.join()
        (error,) = streams.streams[0].errors
        assert "twice" in error
        status, answer = live.post("/v1/chat/completions", body)
        assert status == 400 and "ended its engine twice" in answer["error"]["message"]
        ask(live, "one", "Something else.")
        assert model(live, "one")["quarantined_prompts"] == 1
    figure("in work at two deaths: an error, then refused with 400; another prompt is answered")
