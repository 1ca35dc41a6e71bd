"""Point 7, the cases D2, D3 and K20, on a server."""

import threading
import time
from pathlib import Path

import pytest

from tests import models
from tests.acceptance.conftest import Figure
from tests.acceptance.engines.streams import Stream, Streams, answer_of, model
from tests.acceptance.serve.test_03_restart import words
from tests.live import Live, chat, wait_until


def test_d2_a_loop_ends_and_says_so(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    """Greedy text of random weights runs into a loop; without the guard it takes the window."""
    with Live("--model-dir", str(tiny_model), "--repetition-guard", "64", home=tmp_path) as live:
        body = chat("tiny", "Say something.", max_tokens=4000)
        status, answer = live.post("/v1/chat/completions", body)
        assert status == 200
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")
        number = answer["usage"]["completion_tokens"]
        assert 64 <= number < 4000
        status, message = live.post("/v1/messages", body)
        assert (status, message["stop_reason"]) == (200, "max_tokens")
        assert message["usage"]["output_tokens"] == number
        assert message["finish_details"] == {"reason": "repetition"}
        events = [line for _, line in live.stream("/v1/messages", body) if "stop_reason" in line]
        assert "repetition" in events[-1]
    figure(f"D2: a loop ended after {number} of 4000 tokens, with the reason in both dialects")


@pytest.mark.parametrize("length", [60_000, 9_000])
def test_d3_short_questions_beside_a_long_prefill(
    length: int, tmp_path: Path, figure: Figure
) -> None:
    """Questions of 50 tokens on a cached prefix; the shorter prefill ends while they go on."""
    folder = models.tiny_served_model(tmp_path / "models", window=65536)
    args = ("--model-dir", str(folder), "--drain-timeout", "1s")
    with Live(*args, home=tmp_path / "home") as live:
        history = [
            {"role": "user", "content": words(800, 4)},
            {"role": "assistant", "content": "Yes."},
        ]
        answer_of(live, chat("tiny", "One?", history=history))
        streams = Streams(live)
        began = time.monotonic()
        streams.start(Stream(chat("tiny", words(length, 5), max_tokens=4)))
        wait_until(lambda: model(live, "tiny")["prefilling"] == 1)
        times: list[float] = []
        while model(live, "tiny")["prefilling"] and len(times) < 12:
            started = time.monotonic()
            answer_of(live, chat("tiny", words(50, len(times)), max_tokens=1, history=history))
            times.append(time.monotonic() - started)
        asked_s = time.monotonic() - began
        if length < 20_000:
            streams.join()
            assert streams.streams[0].errors == [] and streams.streams[0].finish
        else:
            assert model(live, "tiny")["prefilling"] == 1, "it goes on"
    assert len(times) >= 4
    middle = sorted(times)[len(times) // 2]
    figure(
        f"D3: {len(times)} questions in {asked_s:.1f} s of a prefill of {length} tokens: answers "
        f"after {middle:.2f} s in the median, {max(times):.2f} s at most"
    )
    assert max(times) < asked_s / 3, "none waits for the prefill to end"


@pytest.mark.parametrize("num", [2, 4, 8])
def test_k20_texts_are_those_of_solo_runs(
    num: int, tiny_model: Path, tmp_path: Path, figure: Figure
) -> None:
    bodies = [
        chat("tiny", f"marker{i} " + words(3 + 40 * i, i), max_tokens=12 + 25 * i)
        for i in range(num)
    ]
    with Live("--model-dir", str(tiny_model), "--no-cache", home=tmp_path) as live:
        alone = [answer_of(live, body) for body in bodies]
        streams = Streams(live)
        for body in bodies:  # they come and go while others run
            streams.start(Stream(body))
            time.sleep(0.03)
        streams.join()
        assert [s.errors for s in streams.streams] == [[]] * num
        together = [s.text for s in streams.streams]
    assert len(set(alone)) == num
    assert together == alone
    figure(f"K20: {num} at once: each text is that of its solo run")


def test_k20_no_foreign_marker(demo: Path, tmp_path: Path, figure: Figure) -> None:
    """The real model is told a word and says it again, or at least no other one's."""
    marks = ["walnut", "copper", "violin", "harbor", "pepper", "saddle", "candle", "ribbon"]
    with Live("--model-dir", str(demo), home=tmp_path) as live:
        texts: dict[str, str] = {}

        def ask(mark: str) -> None:
            text = f"The secret word is {mark}. Repeat this sentence: the secret word is {mark}."
            texts[mark] = answer_of(live, chat(demo.name, text, max_tokens=24)).lower()

        threads = [threading.Thread(target=ask, args=(mark,)) for mark in marks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    foreign = [(m, o) for m, text in texts.items() for o in marks if o != m and o in text]
    own = sum(mark in text for mark, text in texts.items())
    figure(f"K20: 8 at once on the demo model: {own} say their own word, {len(foreign)} another's")
    assert foreign == [] and own >= 4
