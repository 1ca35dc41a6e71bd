"""Counts for clients that believe in another window: consistent, and nowhere else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.request import FinishReason
from omlx.server.generation import Usage
from omlx.server.scale import REAL, Scale, scale_of
from omlx.settings.prompts import Agent
from tests.fakes.engine import say
from tests.fakes.server import Plan, Running, running

COUNTS = st.integers(0, 10**7)
WINDOWS = st.integers(16, 2 * 10**6)


@given(COUNTS, COUNTS, WINDOWS, WINDOWS)
def test_sizes_keep_their_order_and_a_full_window_is_full(one, other, target, window):
    scale = Scale(target, window)
    low, high = sorted((one, other))
    assert scale.tokens(low) <= scale.tokens(high)
    assert (scale.tokens(one) > target) == (one > window)
    assert scale.tokens(window) == target
    assert (scale.tokens(one) == 0) == (one == 0)
    told = scale.usage(Usage(high, low, high, low))
    assert 0 <= told.cached <= told.prompt
    assert 0 <= told.reasoning <= told.completion


def test_counts_are_real_unless_the_settings_say_otherwise():
    assert scale_of(Agent(), 8192) is REAL
    assert scale_of(Agent(scale_tokens="auto"), None) is REAL
    assert scale_of(Agent(scale_tokens="auto"), 50_000).tokens(10) == 40
    assert scale_of(Agent(scale_tokens=1_000_000), 50_000).tokens(10) == 200
    assert REAL.usage(Usage(9, 8, 7, 6)) == Usage(9, 8, 7, 6)


@pytest.fixture(scope="module")
def scaled():
    with running(Plan(agent=Agent(scale_tokens=3000))) as server:  # of a window of 1000
        server.engine.script = say("four", memory=8, disk=2)
        yield server


def usages(server: Running, *, is_stream: bool) -> list[dict]:
    """What each dialect tells, streamed or not."""
    fields = {"stream": is_stream}
    options = {"stream_options": {"include_usage": True}} if is_stream else {}
    answers = [
        server.chat(**fields, **options),
        server.message(**fields),
        server.respond(**fields),
        server.complete("user:hi\nassistant:", **fields, **options),
    ]
    found = []
    for answer in answers:
        text = answer.raise_for_status().text
        if not is_stream:
            found.append(json.loads(text)["usage"])
            continue
        events = [
            json.loads(line.removeprefix("data: "))
            for line in text.splitlines()
            if line.startswith("data: {")
        ]
        told = [event.get("usage") or event.get("response", {}).get("usage") for event in events]
        found.append([usage for usage in told if usage][-1])
    return found


@pytest.mark.parametrize("is_stream", [False, True])
def test_every_dialect_tells_scaled_counts_that_add_up(scaled, is_stream):
    chat, message, response, completion = usages(scaled, is_stream=is_stream)
    for usage in (chat, completion):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (54, 12)
        assert usage["total_tokens"] == 66
        assert usage["prompt_tokens_details"]["cached_tokens"] == 30
    assert message["input_tokens"] + message["cache_read_input_tokens"] == 54
    assert (message["cache_read_input_tokens"], message["output_tokens"]) == (30, 12)
    assert (response["input_tokens"], response["output_tokens"]) == (54, 12)
    assert response["total_tokens"] == 66
    assert response["input_tokens_details"]["cached_tokens"] == 30


def test_counting_says_the_same_as_the_answer(scaled):
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    counted = scaled.http.post("/v1/messages/count_tokens", json=body).json()
    assert counted == {"input_tokens": 54}


def test_an_overflow_speaks_of_the_window_that_the_client_believes_in(scaled):
    for answer in (scaled.chat("x" * 1000), scaled.message("x" * 1000), scaled.respond("x" * 1000)):
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message.startswith("prompt is too long: 3048 tokens > 3000 maximum.")


def test_model_lists_tell_the_same_window(scaled):
    with running(Plan(agent=Agent(scale_tokens=3000), context_window=1000)) as server:
        assert server.http.get("/v1/models/fake").json()["context_window"] == 3000
        headers = {"anthropic-version": "2023-06-01"}
        assert (
            server.http.get("/v1/models/fake", headers=headers).json()["max_input_tokens"] == 3000
        )
        assert server.http.get("/admin/api/status").json()["models"][0]["window"] == 1000


def test_figures_for_the_user_are_real(scaled):
    before = scaled.http.get("/metrics").text
    scaled.message()
    after = scaled.http.get("/metrics").text

    def prompt_tokens(text: str) -> float:
        """0 while nothing was counted: this may be the first request that its server sees."""
        lines = [one for one in text.splitlines() if one.startswith("omlx_prompt_tokens_total{")]
        return sum(float(one.rpartition(" ")[2]) for one in lines)

    assert prompt_tokens(after) - prompt_tokens(before) == 18
    recent = scaled.http.get("/admin/api/requests").json()["recent"][0]
    assert (recent["prompt_tokens"], recent["cached_memory"], recent["cached_disk"]) == (18, 8, 2)


def test_limits_that_a_client_sends_are_of_real_tokens(scaled):
    scaled.engine.script = say("x" * 50, reason=FinishReason.STOP)
    try:
        answer = scaled.chat(max_tokens=10).json()
    finally:
        scaled.engine.script = say("four", memory=8, disk=2)
    assert answer["choices"][0]["message"]["content"] == "x" * 10
    assert answer["usage"]["completion_tokens"] == 30
