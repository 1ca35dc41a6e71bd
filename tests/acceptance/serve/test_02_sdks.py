"""Point 2: the capital of France, through both endpoints and both SDKs, parsed strictly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from tests.acceptance.conftest import Figure
from tests.live import Live, chat
from tests.sdktypes import unknown_keys

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def live(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live("--model-dir", str(demo.parent), home=tmp_path_factory.mktemp("home")) as server:
        yield server


def test_chat(live: Live, demo: Path, figure: Figure) -> None:
    status, body = live.post("/v1/chat/completions", chat(demo.name, QUESTION, max_tokens=20))
    assert status == 200
    completion = ChatCompletion.model_validate(body)
    assert unknown_keys(completion) == []
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key="none")
    sdk = client.chat.completions.create(**chat(demo.name, QUESTION, max_tokens=20))
    text = sdk.choices[0].message.content
    assert text == completion.choices[0].message.content and "Paris" in (text or "")
    figure(f"chat: {text!r}")


def test_chat_streamed(live: Live, demo: Path, figure: Figure) -> None:
    body = {**chat(demo.name, QUESTION, max_tokens=20), "stream_options": {"include_usage": True}}
    data = [line[6:] for _, line in live.stream("/v1/chat/completions", body) if line[:1] == "d"]
    assert data[-1] == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate_json(d) for d in data[:-1]]
    assert [k for c in chunks for k in unknown_keys(c)] == []
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{live.port}/v1", api_key="none")
    stream = client.chat.completions.create(**body, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == text
    figure(f"chat streamed: {text!r}, {len(chunks)} chunks")


def messages_body(demo: Path) -> dict[str, Any]:
    return {
        "model": demo.name,
        "max_tokens": 20,
        "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}],
    }


def sdk_arguments(demo: Path) -> dict[str, Any]:
    """The same for the SDK, whose types no longer name a temperature."""
    body = messages_body(demo)
    extra = {"temperature": body.pop("temperature")}
    return {**body, "extra_body": extra}


def test_messages(live: Live, demo: Path, figure: Figure) -> None:
    status, body = live.post("/v1/messages", messages_body(demo))
    assert status == 200
    message = Message.model_validate(body)
    assert unknown_keys(message) == []
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{live.port}", api_key="none")
    sdk = client.messages.create(**sdk_arguments(demo))
    (block,) = sdk.content
    assert block.type == "text" and "Paris" in block.text
    figure(f"messages: {block.text!r}")


def test_messages_streamed(live: Live, demo: Path, figure: Figure) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    lines = [line for _, line in live.stream("/v1/messages", messages_body(demo))]
    data = [line[6:] for line in lines if line.startswith("data: ")]
    events = [adapter.validate_json(d) for d in data if '"type":"ping"' not in d]
    assert [k for e in events for k in unknown_keys(e)] == []
    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{live.port}", api_key="none")
    with client.messages.stream(**sdk_arguments(demo)) as stream:
        text = "".join(stream.text_stream)
        usage = stream.get_final_message().usage
    assert "Paris" in text
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    figure(f"messages streamed: {text!r}, {total} input tokens")
