"""The vendors' own clients against the server."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

from omlx.engine.request import Failed, FailureCode
from omlx.settings.schema import Server
from tests.fakes.engine import PATIENCE_S, say
from tests.fakes.server import Plan, running
from tests.unit.server import strict

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def served():
    with running(Plan(server=Server(port=0, api_key="local"))) as server:
        server.engine.script = say("Paris 😀", memory=30)
        yield server


@pytest.fixture(scope="module")
def openai_client(served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="local", max_retries=0, timeout=PATIENCE_S
    ) as client:
        yield client


@pytest.fixture(scope="module", params=["api_key", "auth_token"])
def anthropic_client(served, request) -> Iterator[anthropic.Anthropic]:
    """Once with x-api-key and once with a bearer token, as Claude Code sends it."""
    keys = {"api_key": None, "auth_token": None, request.param: "local"}
    with anthropic.Anthropic(
        base_url=served.url, max_retries=0, timeout=PATIENCE_S, **keys
    ) as client:
        yield client


def test_openai(openai_client):
    answer = openai_client.chat.completions.create(model="fake", messages=MESSAGES)
    strict.assert_known_keys(answer)
    assert answer.choices[0].message.content == "Paris 😀"
    assert answer._request_id.startswith("req_")
    stream = openai_client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    for chunk in chunks:
        strict.assert_known_keys(chunk)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Paris 😀"
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 30


def test_openai_stream_helper(openai_client):
    with openai_client.chat.completions.stream(model="fake", messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Paris 😀"
    assert final.choices[0].finish_reason == "stop"


def test_openai_responses(openai_client):
    create = openai_client.responses.create
    answer = create(model="fake", input="What is the capital of France?", instructions="Be brief.")
    strict.assert_known_keys(answer)
    assert (answer.output_text, answer.usage.input_tokens_details.cached_tokens) == ("Paris 😀", 30)
    events = list(
        create(model="fake", input="And now?", previous_response_id=answer.id, stream=True)
    )
    for event in events:
        strict.assert_known_keys(event)
    assert events[-1].response.output_text == "Paris 😀"
    with openai_client.responses.stream(model="fake", input="hi" * 20) as stream:
        assert stream.get_final_response().output_text == "Paris 😀"
    assert openai_client.responses.retrieve(answer.id) == answer
    items = list(openai_client.responses.input_items.list(answer.id))
    assert [item.content[0].text for item in items] == ["What is the capital of France?"]
    openai_client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(answer.id)


def test_openai_completions(openai_client):
    create = openai_client.completions.create
    answer = create(model="fake", prompt="The capital of France is called ")
    strict.assert_known_keys(answer)
    assert answer.choices[0].text == "Paris 😀"
    stream = create(model="fake", prompt=["Once " * 10, "Twice " * 10], echo=True, stream=True)
    text = "".join(choice.text for chunk in stream for choice in chunk.choices if not choice.index)
    assert text == "Once " * 10 + "Paris 😀"


def test_openai_models(openai_client):
    (model,) = openai_client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "omlx")
    # The documented exceptions.
    assert set(model.model_extra) == {"context_window", "root", "profile", "capabilities"}
    assert openai_client.models.retrieve("fake") == model


def test_openai_errors(served, openai_client):
    create = openai_client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="fake", messages=[{"role": "user", "content": "x" * 2000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="fake", messages=MESSAGES, n=20)
    assert caught.value.param == "$.n"
    with pytest.raises(openai.NotFoundError):
        create(model="other", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        openai_client.with_options(api_key="wrong").models.list()


def test_anthropic(anthropic_client):
    answer = anthropic_client.messages.create(model="fake", max_tokens=50, messages=MESSAGES)
    strict.assert_known_keys(answer)
    assert [block.text for block in answer.content] == ["Paris 😀"]
    assert answer.usage.cache_read_input_tokens == 30
    with anthropic_client.messages.stream(
        model="fake", max_tokens=50, messages=MESSAGES, system="Be brief."
    ) as stream:
        assert "".join(stream.text_stream) == "Paris 😀"
        final = stream.get_final_message()
    strict.assert_known_keys(final)
    assert final.stop_reason == "end_turn"
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens > 30


def test_anthropic_models(anthropic_client):
    (model,) = anthropic_client.models.list().data
    strict.assert_known_keys(model)
    assert (model.id, model.display_name) == ("fake", "fake")
    assert anthropic_client.models.retrieve("fake") == model


def test_anthropic_errors(anthropic_client):
    create = anthropic_client.messages.create
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        create(model="fake", max_tokens=5, messages=[{"role": "user", "content": "x" * 2000}])
    with pytest.raises(anthropic.NotFoundError):
        create(model="other", max_tokens=5, messages=MESSAGES)


def test_errors_in_a_stream_reach_the_sdks(served, openai_client, anthropic_client):
    def script(request):
        yield from list(say("Pa")(request))[:-1]
        yield [Failed(request.id, FailureCode.ENGINE, "the engine died")]

    before, served.engine.script = served.engine.script, script
    try:
        with pytest.raises(openai.APIError, match="the engine died"):
            list(
                openai_client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
            )
        with (
            pytest.raises(anthropic.APIStatusError, match="the engine died"),
            anthropic_client.messages.stream(
                model="fake", max_tokens=50, messages=MESSAGES
            ) as stream,
        ):
            stream.get_final_message()
    finally:
        served.engine.script = before


def test_wrong_keys(served):
    with (
        anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model="fake", max_tokens=5, messages=MESSAGES)
    assert served.stranger.get("/v1/models").status_code == 401
