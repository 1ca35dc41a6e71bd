import json

import pytest

from omlx.engine.request import SamplingParams
from omlx.server.anthropic.messages import Messages
from omlx.server.canonical import canonical
from omlx.server.errors import ApiError
from omlx.server.generation import Generation
from omlx.server.openai.chat import Chat
from omlx.server.prompt import encode, prepare, render
from omlx.settings.prompts import Prompt
from omlx.settings.schema import Journal as JournalSettings
from omlx.settings.schema import Sampling, Server
from tests.fakes.engine import ScriptedEngine
from tests.fakes.server import Plan, entry
from tests.fakes.text import FakeText


def request(content="hi", **fields) -> bytes:
    body = {"model": "fake", "messages": [{"role": "user", "content": content}], **fields}
    return json.dumps(body).encode()


def prepared(plan=None, body=None):
    return prepare((plan or Plan()).context(), Chat(), body or request())


def refusal(*args) -> ApiError:
    with pytest.raises(ApiError) as caught:
        prepared(*args)
    return caught.value


# The prompt of request(): "user:hi\nassistant:"
PROMPT_TOKENS = 18


def test_a_request_becomes_tokens():
    result = prepared()
    assert bytes(result.tokens) == b"user:hi\nassistant:"
    assert result.model_id == "fake"


# ---- models


def test_an_unknown_model_is_a_404():
    error = refusal(None, request(model="other"))
    assert (error.status, error.code) == (404, "model_not_found")


def test_the_default_model_serves_unknown_names_when_it_is_set():
    """A15"""
    plan = Plan(server=Server(port=0, default_model="fake"))
    assert prepared(plan, request(model="claude-haiku")).model_id == "fake"


def test_demo_means_the_demo_model():
    demo = "SmolLM2-135M-Instruct"
    engines = [ScriptedEngine(), ScriptedEngine(demo)]
    plan = Plan(entries=[entry(), entry(demo)], engines=engines)
    assert prepared(plan, request(model="demo")).model_id == demo


# ---- budget


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ((100, None, None), 100),
        ((None, 100, None), 100),
        ((None, None, 100), 100),
        ((300, 100, 200), 100),
    ],
)
def test_the_smallest_known_window_counts(windows, expected):
    of_text, of_entry, of_settings = windows
    plan = Plan(
        text=FakeText(context_window=of_text),
        entries=[entry(window=of_entry)],
        context_window=of_settings,
    )
    assert prepared(plan).max_tokens == expected - PROMPT_TOKENS


def test_no_max_tokens_means_the_rest_of_the_window():
    """K25"""
    assert prepared().max_tokens == 1000 - PROMPT_TOKENS


def test_a_budget_that_does_not_fit_is_clamped_not_refused():
    """A13"""
    assert prepared(None, request(max_tokens=10**6)).max_tokens == 1000 - PROMPT_TOKENS
    assert prepared(None, request(max_tokens=1e12)).max_tokens == 1000 - PROMPT_TOKENS
    assert prepared(None, request(max_tokens=5)).max_tokens == 5


def test_the_setting_is_the_budget_of_a_request_without_one():
    plan = Plan(sampling=Sampling(max_tokens=7))
    assert prepared(plan).max_tokens == 7
    assert prepared(plan, request(max_tokens=9)).max_tokens == 9


@pytest.mark.parametrize(("length", "fits"), [(999, True), (1000, False), (1031, False)])
def test_a_prompt_that_fills_the_window_is_refused_with_both_numbers(length, fits):
    """A13"""
    body = request("x" * (length - PROMPT_TOKENS + 2))
    if fits:
        assert prepared(None, body).max_tokens == 1
        return
    error = refusal(None, body)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert f"{length} tokens > 1000 maximum" in error.message


def test_without_a_known_window_there_still_is_a_limit():
    plan = Plan(text=FakeText(context_window=None))
    assert prepared(plan).max_tokens == 32768
    assert prepared(plan, request(max_tokens=10**6)).max_tokens == 10**6


# ---- sampling


def test_sampling_without_any_wish():
    assert prepared().sampling == SamplingParams(temperature=1.0)


def test_settings_count_where_the_request_says_nothing():
    plan = Plan(sampling=Sampling(temperature=0.5, top_p=0.9, top_k=40, min_p=0.1))
    expected = SamplingParams(temperature=0.0, top_p=0.9, top_k=40, min_p=0.1)
    assert prepared(plan, request(temperature=0)).sampling == expected


def test_every_sampling_field_arrives():
    """K12"""
    fields = {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "seed": 42,
    }
    assert prepared(None, request(**fields)).sampling == SamplingParams(**fields)


def test_top_p_zero_leaves_the_most_probable_token():
    assert 0 < prepared(None, request(top_p=0)).sampling.top_p < 1e-5


@pytest.mark.parametrize(("seed", "expected"), [(-1, 2**63 - 1), (2**64 + 5, 5), (7.0, 7)])
def test_any_whole_seed_is_taken(seed, expected):
    assert prepared(None, request(seed=seed)).sampling.seed == expected


# ---- templates that object


def no_late_system(messages):
    late = any(message["role"] == "system" for message in messages[1:])
    return "System message must be at the beginning." if late else None


def alternating(messages):
    roles = [message["role"] for message in messages]
    if "system" in roles:
        return "System role not supported"
    return "must alternate" if any(a == b for a, b in zip(roles, roles[1:], strict=False)) else None


SYSTEM_IN_THE_MIDDLE = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "hi"},
    {"role": "system", "content": [{"type": "text", "text": "note"}]},
    {"role": "user", "content": "go"},
]


def test_a_late_system_message_stays_where_it_is_if_the_template_can():
    """A2"""
    text = render(FakeText(), SYSTEM_IN_THE_MIDDLE)
    assert text == "system:a\nuser:hi\nsystem:note\nuser:go\nassistant:"


def test_a_late_system_message_becomes_a_note_if_the_template_refuses_it():
    """A2: in its place, so that what comes before it is what it was."""
    text = render(FakeText(refuse=no_late_system), SYSTEM_IN_THE_MIDDLE)
    assert text == (
        "system:a\nuser:hi\nuser:<system-reminder>\nnote\n</system-reminder>\nuser:go\nassistant:"
    )


def test_roles_are_made_to_alternate_if_the_template_wants_it():
    text = render(FakeText(refuse=alternating), SYSTEM_IN_THE_MIDDLE)
    assert text == (
        "user:<system-reminder>\na\n</system-reminder>\n\nhi\n\n"
        "<system-reminder>\nnote\n</system-reminder>\n\ngo\nassistant:"
    )


def test_what_the_template_says_reaches_the_client():
    """T3"""
    with pytest.raises(ApiError, match="I refuse") as caught:
        render(FakeText(refuse=lambda _: "I refuse"), SYSTEM_IN_THE_MIDDLE)
    assert caught.value.status == 400


def test_an_answer_that_was_begun_is_continued():
    """K7"""
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "The best"},
    ]
    assert render(FakeText(), messages) == "user:hi\nassistant:The best"


def test_an_answer_to_nothing_is_refused():
    with pytest.raises(ApiError) as caught:
        render(FakeText(), [{"role": "assistant", "content": "x"}])
    assert caught.value.param == "$.messages"


# ---- the line that changes with each request


LINE = "x-anthropic-billing-header: cc_version=9.9.9.aaa; cc_entrypoint=cli; cch=%d;"


def prompt_of(system, user="hi"):
    body = {
        "model": "fake",
        "max_tokens": 5,
        "system": system,
        "messages": [{"role": "user", "content": user}],
    }
    tokens = prepare(Plan().context(), Messages(), json.dumps(body).encode()).tokens
    return bytes(tokens).decode()


def block(text):
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    "system",
    [
        lambda nonce: [block(LINE % nonce), block("rules")],
        lambda nonce: [block("rules"), block(LINE % nonce)],
        lambda nonce: [block(f"{LINE % nonce}\nrules")],
        lambda nonce: f"{LINE % nonce}\nrules",
    ],
)
def test_the_attribution_line_never_reaches_the_prompt(system):
    """A1"""
    assert prompt_of(system(11111)) == prompt_of(system(22222)) == prompt_of("rules")


@pytest.mark.parametrize("system", [[block(LINE % 1)], LINE % 1])
def test_a_system_of_nothing_but_the_line_is_no_system(system):
    """A1"""
    assert prompt_of(system) == "user:hi\nassistant:"


def test_text_that_only_quotes_the_line_is_left_alone():
    """A1"""
    quote = f"what is {LINE % 1}?"
    assert quote in prompt_of("rules", user=quote)
    assert LINE % 1 in prompt_of("rules", user=LINE % 1)
    assert quote in prompt_of([block(quote)])


# ---- the parts of the prompt


def parts(body: dict, dialect=None, text=None) -> dict[str, str]:
    decoded = (dialect or Chat()).decode(json.dumps(body).encode())
    generation = canonical(decoded, Prompt(), None).generation
    encoded = encode(text or FakeText(), generation)
    assert bytes(encoded.tokens).decode() == encoded.text
    data = bytes(encoded.tokens)
    return {str(span.part): data[span.start : span.end].decode() for span in encoded.spans}


def test_the_parts_of_a_chat():
    body = {"model": "fake", "messages": [*SYSTEM_IN_THE_MIDDLE, *SYSTEM_IN_THE_MIDDLE[1:2]]}
    assert parts(body) == {
        "system block 0": "a",
        "message 1 (user)": "hi",
        "message 2 (system)": "note",
        "message 3 (user)": "go",
        "message 4 (user)": "hi",
    }


def test_the_parts_of_a_message():
    body = {
        "model": "fake",
        "max_tokens": 5,
        "system": [block("rüles"), block(LINE % 5), block("more")],
        "messages": [
            {"role": "user", "content": [block("hi"), block("there")]},
            {"role": "assistant", "content": "The"},
        ],
    }
    assert parts(body, Messages()) == {
        "system block 0": "rüles",
        "system block 2": "more",
        "message 0 (user)": "hi|there",
        "message 1 (assistant)": "The",
    }


@pytest.mark.parametrize("refuse", [no_late_system, alternating])
def test_parts_are_found_in_what_was_changed_for_the_template(refuse):
    body = {"model": "fake", "messages": SYSTEM_IN_THE_MIDDLE}
    found = parts(body, text=FakeText(refuse=refuse))
    assert list(found.values()) == ["a", "note", "hi", "go"]


def test_a_prompt_is_kept_as_text_only_by_setting():
    assert prepared().prompt is None
    plan = Plan(journal=JournalSettings(text=True))
    assert prepared(plan).prompt == "user:hi\nassistant:"


# ---- bodies with tools, which are read to be explained


def read(name):
    return {"name": name, "description": f"does {name}", "input_schema": {"type": "object"}}


TOOL_BODY = {
    "model": "fake",
    "max_tokens": 5,
    "system": "Be brief.",
    "tools": [read("grep"), read("ls")],
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "ls", "input": {"path": "/é"}},
                {"type": "tool_use", "id": "2", "name": "grep", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "a.txt"},
                {
                    "type": "tool_result",
                    "tool_use_id": "2",
                    "content": [{"type": "text", "text": "x"}],
                },
                {"type": "text", "text": "and now?"},
            ],
        },
    ],
}


def test_an_anthropic_body_with_tools():
    generation = Messages().decode(json.dumps(TOOL_BODY).encode())
    assert [m["role"] for m in generation.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert generation.places == [-1, 0, 1, 2, 2, 2]
    assert generation.messages[2]["tool_calls"][0]["function"] == {
        "name": "ls",
        "arguments": '{"path": "/é"}',
    }
    assert [m["content"] for m in generation.messages[3:]] == ["a.txt", "x", "and now?"]
    assert generation.tools[1]["function"]["parameters"] == {"type": "object"}
    found = parts(TOOL_BODY, Messages())
    assert json.loads(found['tool 1 "ls"'])["function"]["name"] == "ls"
    assert found["message 2 (user)"] == "and now?"
    assert found["message 2 (tool)"] == "a.txt\ntool:x"


def test_a_schema_that_is_nested_too_deeply_has_no_parts():
    schema: dict = {}
    for _ in range(5000):
        schema = {"x": schema}
    deep = Generation("m", [{"role": "user", "content": "hi"}], tools=[{"function": schema}])

    class Silent(FakeText):
        def render(self, messages, *, tools=None):
            return super().render(messages)

    assert encode(Silent(), deep).spans == ()


def test_an_openai_body_with_tools():
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
    body = {
        "model": "fake",
        "tools": [tool],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "a.txt"},
        ],
    }
    generation = Chat().decode(json.dumps(body).encode())
    assert generation.tools == [tool]
    assert generation.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a.txt", "tool_call_id": "1", "name": "ls"},
    ]
    found = parts(body, Chat())
    assert json.loads(found['tool 0 "ls"']) == tool
    assert found["message 2 (tool)"] == "a.txt"
