"""What is the same for the model becomes the same prompt, and nothing else changes."""

import copy
import json
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.server.anthropic.messages import Counting, Messages
from omlx.server.canonical import Rule
from omlx.server.openai.chat import Chat
from omlx.server.openai.responses import Responses
from omlx.server.prompt import count_tokens, prepare
from omlx.settings.prompts import Prompt
from omlx.settings.schema import Cache
from omlx.storage.entry import PartKind
from omlx.storage.history import History
from omlx.storage.toolsets import ToolSets
from tests.fakes.server import Plan, running
from tests.fakes.shuffle import shuffled
from tests.fakes.templated import TemplatedText
from tests.fakes.text import FakeText
from tests.unit.server.test_keys import Keys

LINE = "x-anthropic-billing-header: cc_version=2.1.332.%s; cc_entrypoint=cli; cch=%s;"
UUIDS = ("0b6e2a52-91c4-4f0e-8f3e-6a3c3a1d2b11", "f3a1c9d0-1111-4222-8333-444455556666")
LEFT = "<total_tokens>%d tokens left</total_tokens>"
WARNING = "<system_warning>Token usage: %d/200000; %d remaining</system_warning>"
TOOLS = [
    {
        "name": name,
        "description": f"Does {name}.",
        "input_schema": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Where.", "enum": ["b", "a"]},
                "count": {"type": "integer", "minimum": 1.5},
            },
            "required": ["path", "count"],
        },
    }
    for name in ("read", "grep", "ls", "bash")
]


class Memory:
    """A first order that is kept for as long as a test takes."""

    def __init__(self):
        self.known: dict[bytes, str] = {}

    def first(self, key: bytes, text: str) -> str:
        return self.known.setdefault(key, text)

    def close(self):
        pass


def block(text, **more):
    return {"type": "text", "text": text, **more}


def message_body(user="hi", **fields):
    messages = fields.pop("messages", [{"role": "user", "content": user}])
    return {"model": "fake", "max_tokens": 5, "messages": messages, **fields}


def chat_body(user="hi", system="rules", **fields):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "fake", "messages": fields.pop("messages", messages), **fields}


def as_function(tool):
    return {
        "type": "function",
        "function": {
            "name": tool["name"],
            "description": tool["description"],
            "parameters": tool["input_schema"],
        },
    }


def prepared(body, dialect=None, *, rules=None, sets=None, text=None, salt=""):
    text = text or FakeText(context_window=None)
    plan = Plan(text=text, prompt=rules or Prompt(), tool_sets=sets)
    data = json.dumps(body).encode()
    made = prepare(plan.context(), dialect or Messages(), data, salt=salt)
    if isinstance(dialect or Messages(), Messages):
        assert count_tokens(plan.context(), Counting(), data, salt) == len(made.tokens)
    return made


def prompt_of(body, dialect=None, **more):
    return bytes(prepared(body, dialect, **more).tokens).decode()


def common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def common_text(one, other) -> str:
    first, second = (bytes(made.tokens).decode() for made in (one, other))
    return first[: common(first, second)]


# ---- the attribution line


@pytest.mark.parametrize(
    ("dialect", "make"),
    [
        (Messages(), lambda line: message_body(system=f"{line}\nrules")),
        (Messages(), lambda line: message_body(system=[block(line), block("rules")])),
        (Chat(), lambda line: chat_body(system=f"{line}\n\nrules")),
        (Chat(), lambda line: chat_body(system=[block(line), block("rules")])),
        (
            Responses(),
            lambda line: {"model": "fake", "instructions": f"{line}\n{line}\nrules", "input": "hi"},
        ),
    ],
)
def test_a1_the_attribution_line_is_left_out_in_every_dialect(dialect, make):
    """A1"""
    one = prepared(make(LINE % ("abc", "11111")), dialect)
    other = prepared(make(LINE % ("def", "22222")), dialect)
    assert bytes(one.tokens) == bytes(other.tokens) == b"system:rules\nuser:hi\nassistant:"
    assert one.changes == {"attribution": 1}


def test_a1_a_switch_leaves_the_line_in():
    """A1"""
    body = message_body(system=LINE % ("abc", "1"))
    made = prepared(body, rules=Prompt(drop_attribution=False))
    assert bytes(made.tokens).startswith(b"system:x-anthropic")
    assert made.changes == {}


@pytest.mark.parametrize(
    "system", ["see x-anthropic-billing-header: a", " x-anthropic-billing-header: a", "rules"]
)
def test_a1_nothing_else_is_the_line(system):
    """A1"""
    made = prepared(message_body(system=system))
    assert bytes(made.tokens).decode() == f"system:{system}\nuser:hi\nassistant:"
    assert made.changes == {}


def test_a1_a_system_message_in_the_middle_may_begin_with_it():
    """A1: only the system itself has it, and there only users and tools quote it."""
    messages = [
        {"role": "user", "content": LINE % ("a", "1")},
        {"role": "system", "content": LINE % ("a", "2")},
        {"role": "user", "content": "go"},
    ]
    assert prepared(message_body(messages=messages)).changes == {"system_first": 1}


def first_turn(text: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": text},
        {"role": "system", "content": "agents"},
        {"role": "user", "content": "go"},
    ]


def test_system_messages_of_the_first_turn_come_before_what_the_user_says():
    """So that another conversation shares them, too."""
    made = prepared(message_body(system="rules", messages=first_turn("hi")))
    assert bytes(made.tokens).decode() == (
        "system:rules\nsystem:agents\nuser:hi\nuser:go\nassistant:"
    )
    assert [str(span.part) for span in made.spans] == [
        "system block 0",
        "message 1 (system)",
        "message 0 (user)",
        "message 2 (user)",
    ]
    assert bytes(made.tokens[: made.head]).decode().endswith("agents")
    kept = prepared(
        message_body(system="rules", messages=first_turn("hi")),
        rules=Prompt(system_first=False),
    )
    assert "user:hi\nsystem:agents" in bytes(kept.tokens).decode()


def test_system_messages_of_later_turns_stay_where_they_are():
    first = prepared(message_body(messages=first_turn("hi")))
    later = [
        *first_turn("hi"),
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and?"},
        {"role": "system", "content": "remember"},
    ]
    made = bytes(prepared(message_body(messages=later)).tokens).decode()
    assert made.startswith(bytes(first.tokens).decode())
    assert made.endswith("user:and?\nsystem:remember\nassistant:")


def test_a_system_message_of_a_chat_that_was_nothing_else_is_gone_and_parts_keep_their_numbers():
    messages = [
        {"role": "system", "content": LINE % ("a", "1")},
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "hi"},
    ]
    made = prepared(chat_body(messages=messages), Chat())
    assert [str(span.part) for span in made.spans] == ["system block 1", "message 2 (user)"]


# ---- countdowns


def turns(*lefts, at_end=True):
    messages = []
    for number, left in enumerate(lefts):
        messages.append({"role": "user", "content": f"turn {number}"})
        if left is not None:
            messages.append({"role": "system", "content": [block(left)]})
        if number < len(lefts) - 1:
            messages.append({"role": "assistant", "content": f"answer {number}"})
    return messages


@pytest.mark.parametrize(
    "form", [LEFT % 5, WARNING % (7, 3), "<budget:token_budget>9</budget:token_budget>"]
)
def test_messages_that_only_count_down_are_left_out(form):
    plain = prompt_of(message_body(messages=turns(None, None)))
    made = prepared(message_body(messages=turns(form, form)))
    assert bytes(made.tokens).decode() == plain
    assert made.changes == {"countdown": 2}


def test_lines_of_a_countdown_go_and_what_is_around_them_stays():
    text = f"rules\n{LEFT % 14_962_655}\n  {WARNING % (350_000, 650_000)}\nmore"
    assert prompt_of(message_body(system=text)) == "system:rules\nmore\nuser:hi\nassistant:"
    rules = Prompt(drop_countdown=False)
    assert text in prompt_of(message_body(system=text), rules=rules)


@pytest.mark.parametrize(
    "text",
    [
        f"so {LEFT % 5} is said",
        "<total_tokens>many tokens left</total_tokens>",
        "<usage><total_tokens>12</total_tokens></usage>",
        "<total_tokens>5 tokens left",
    ],
)
def test_what_only_speaks_of_a_countdown_stays(text):
    assert prepared(message_body(system=text)).changes == {}
    assert text in prompt_of(message_body(system=text))


def test_a_users_countdown_and_that_of_a_tool_stay():
    use = {"type": "tool_use", "id": "1", "name": "read", "input": {}}
    messages = [
        {"role": "user", "content": LEFT % 5},
        {"role": "assistant", "content": [use, block(LEFT % 6)]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": LEFT % 7}],
        },
    ]
    made = prepared(message_body(messages=messages))
    assert made.changes == {}
    assert all(LEFT % number in bytes(made.tokens).decode() for number in (5, 6, 7))


# ---- the folder of a session


def copilot(uuid, *, elsewhere="", user="ask away"):
    folder = f"/home/u/.copilot/session-state/{uuid}"
    system = (
        f"You help.\n\n<rules>\nBe brief.{elsewhere}\n</rules>\n\n<session_context>\n"
        f"Session folder: {folder}\nPlan file: {folder}/plan.md  (not yet created)\n"
        f"</session_context>\n\n<plan_mode>\nSave to {folder}/plan.md\n</plan_mode>\n\nEnd well."
    )
    return chat_body(user, system, tools=[as_function(tool) for tool in TOOLS])


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "ibm-granite-granite-4.0"])
def test_a_sessions_folder_is_told_of_after_system_and_tools(name):
    text = TemplatedText(name)
    one, other = (prepared(copilot(uuid), Chat(), text=text) for uuid in UUIDS)
    assert one.changes == {"session": 1}
    first, second = bytes(one.tokens).decode(), bytes(other.tokens).decode()
    shared = first[: common(first, second)]
    assert "Does bash." in shared
    assert "End well." in shared
    assert one.head == other.head <= len(shared.encode())
    assert first.count(UUIDS[0]) == 3
    assert "<session_context>\nSession folder: /home/u" in first
    assert first.index("End well.") < first.index(UUIDS[0]) < first.index("ask away")
    without = prepared(copilot(UUIDS[0]), Chat(), text=text, rules=Prompt(session_last=False))
    assert without.changes == {}


def test_the_part_that_was_moved_is_still_one_of_the_system():
    made = prepared(copilot(UUIDS[0]), Chat(), text=TemplatedText("Qwen-Qwen3-0.6B"))
    kinds = [(span.part.kind, span.part.idx) for span in made.spans]
    assert kinds[0] == (PartKind.SYSTEM, 0)
    assert kinds[-2:] == [(PartKind.SYSTEM, 0), (PartKind.MESSAGE, 1)]


def test_a_session_that_is_named_elsewhere_too_stays_where_it_is():
    body = copilot(UUIDS[0], elsewhere=f" See /session-state/{UUIDS[0]}/x.")
    assert prepared(body, Chat()).changes == {}


@pytest.mark.parametrize("hostile", ["<session_context>\n", "<plan_mode>\n\n", LEFT % 5 + " "])
def test_a_text_that_is_long_and_malformed_is_read_in_one_go(hostile):
    """In time that is square to its length, this would take hours."""
    body = chat_body(system=f"<session_context>\n{hostile * 100_000} /session-state/{UUIDS[0]}")
    assert prepared(body, Chat()).changes == {}


def test_a_users_session_stays_where_it_is():
    system = copilot(UUIDS[0])["messages"][0]["content"]
    assert prepared(chat_body(user=system), Chat()).changes == {}


# ---- the order of tools


@given(st.permutations(range(len(TOOLS))), st.integers(0, 10**6))
def test_p19_shuffled_tools_and_keys_are_the_same_prompt(order, seed):
    """P19"""
    sets, rng = Memory(), random.Random(seed)
    for dialect, make in (
        (Messages(), lambda tools: message_body(tools=tools)),
        (Chat(), lambda tools: chat_body(tools=[as_function(tool) for tool in tools])),
    ):
        first = prepared(make(TOOLS), dialect, sets=sets)
        again = [shuffled(TOOLS[idx], rng) for idx in order]
        second = prepared(make(again), dialect, sets=sets)
        assert second.tokens == first.tokens
        assert first.changes == {}
        is_same = json.dumps(again) == json.dumps(TOOLS)
        assert is_same or dialect.flavor.value == "anthropic" or second.changes["tool_order"] > 0


@given(st.permutations(range(len(TOOLS))))
def test_the_parts_still_say_where_the_body_has_a_tool(order):
    sets = Memory()
    prepared(message_body(tools=TOOLS), sets=sets)
    made = prepared(message_body(tools=[TOOLS[idx] for idx in order]), sets=sets)
    found = {
        span.part.name: span.part.idx for span in made.spans if span.part.kind is PartKind.TOOL
    }
    assert found == {TOOLS[idx]["name"]: at for at, idx in enumerate(order)}


def test_the_parts_of_a_response_say_so_too():
    web, (read, grep, ls, _) = (
        {"type": "web_search"},
        [{"type": "function", **as_function(tool)["function"]} for tool in TOOLS],
    )
    group = {"type": "namespace", "name": "fs", "tools": [grep, ls]}
    body = {"model": "fake", "input": "hi"}
    sets = Memory()
    prepared({**body, "tools": [read, group]}, Responses(), sets=sets)
    made = prepared({**body, "tools": [web, group, read]}, Responses(), sets=sets)
    assert made.changes == {"tool_order": 3}
    found = [(one.part.name, one.part.idx) for one in made.spans if one.part.kind is PartKind.TOOL]
    assert found == [("read", 2), ("fs__grep", 1), ("fs__ls", 1)]


def test_values_and_lists_never_change():
    sets = Memory()
    prepared(message_body(tools=TOOLS), sets=sets)
    for path, value in (("required", ["count", "path"]), ("type", "string")):
        other = copy.deepcopy(TOOLS)
        other[0]["input_schema"][path] = value
        made = prepared(message_body(tools=other), sets=sets)
        assert made.changes == {}
        assert json.dumps(value) in bytes(made.tokens).decode()
    other = copy.deepcopy(TOOLS)
    other[0]["input_schema"]["properties"]["count"]["minimum"] = 1
    assert '"minimum": 1}' in prompt_of(message_body(tools=other), sets=sets)


def test_tools_that_are_alike_are_told_apart_by_their_places():
    sets, tools = Memory(), [TOOLS[0], TOOLS[1], TOOLS[0]]
    prepared(message_body(tools=tools), sets=sets)
    made = prepared(message_body(tools=[TOOLS[0], TOOLS[0], TOOLS[1]]), sets=sets)
    assert made.generation.tool_places == [0, 2, 1]
    assert made.changes == {"tool_order": 2}


def test_tenants_that_share_nothing_have_orders_of_their_own():
    sets, mine = Memory(), [TOOLS[1], TOOLS[0]]
    prepared(message_body(tools=TOOLS[:2]), sets=sets, salt="one")
    made = prepared(message_body(tools=mine), sets=sets, salt="two")
    assert made.changes == {}
    assert [tool["function"]["name"] for tool in made.generation.tools] == ["grep", "read"]


@pytest.mark.parametrize("said", ["", "[]", "{}", "[1]", "null", "[" * 10_000, '[{"a": 1}]'])
def test_a_file_that_says_something_else_is_not_believed(said):
    class Broken(Memory):
        def first(self, key, text):
            return said

    made = prepared(message_body(tools=TOOLS), sets=Broken())
    assert made.changes == {}
    assert made.generation.tools == prepared(message_body(tools=TOOLS)).generation.tools


def test_a_switch_leaves_tools_as_they_came():
    sets, rules = Memory(), Prompt(tool_order=False)
    prepared(message_body(tools=TOOLS), sets=sets, rules=rules)
    assert sets.known == {}


def test_a_tool_is_chosen_by_its_name_wherever_it_is():
    sets = Memory()
    prepared(message_body(tools=TOOLS), sets=sets)
    wanted = {"type": "tool", "name": "ls"}
    text = TemplatedText("Qwen-Qwen3-0.6B")
    one = prepared(message_body(tools=TOOLS, tool_choice=wanted), sets=sets, text=text)
    other = prepared(message_body(tools=TOOLS[::-1], tool_choice=wanted), sets=sets, text=text)
    assert one.sampling.grammar is not None
    assert one.sampling.grammar == other.sampling.grammar


def test_orders_survive_a_restart(tmp_path):
    """P19"""
    prompts = []
    for tools in (TOOLS, TOOLS[::-1]):
        sets = ToolSets(tmp_path / "prompts.sqlite3", clock=time.time)
        prompts.append(prompt_of(message_body(tools=tools), sets=sets))
        sets.close()
    assert prompts[0] == prompts[1]


# ---- tools that are told of later


def found_tools(*loaded):
    deferred = {"name": "web", "description": "Looks up.", "input_schema": {"type": "object"}}
    tools = [*TOOLS, *({**deferred, "name": name, "defer_loading": True} for name in loaded)]
    tools.sort(key=lambda tool: tool["name"])
    use = {"type": "tool_use", "id": "1", "name": "grep", "input": {"q": "web"}}
    messages = [{"role": "user", "content": "hi"}]
    if loaded:
        result = [{"type": "tool_reference", "tool_name": name} for name in loaded]
        messages.append({"role": "assistant", "content": [use]})
        returned = {"type": "tool_result", "tool_use_id": "1", "content": result}
        messages.append({"role": "user", "content": [returned]})
    return message_body(tools=tools, messages=messages)


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "GLM-4.6", "moonshotai-Kimi-K2"])
def test_a_tool_that_is_loaded_changes_nothing_before_its_reference(name):
    sets, text = Memory(), TemplatedText(name)
    before = prepared(found_tools(), sets=sets, text=text)
    after = prepared(found_tools("cut"), sets=sets, text=text)
    assert after.tokens[: before.head] == before.tokens[: before.head]
    assert before.head > 0
    shown = bytes(after.tokens).decode()
    assert shown.index('"name": "cut"') > len(common_text(before, after))
    assert {span.part.idx for span in after.spans if span.part.kind is PartKind.TOOL} == {
        0,
        2,
        3,
        4,
    }


# ---- what a client may send in two forms


def call(**more):
    function = {"name": "read", "arguments": '{"path":"a"}'}
    return {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
        **more,
    }


@pytest.mark.parametrize(
    "name", ["Qwen-Qwen3-0.6B", "GLM-4.6", "moonshotai-Kimi-K2", "openai-gpt-oss-120b"]
)
def test_a_call_without_text_is_the_same_in_every_form(name):
    forms = [
        call(),
        call(content=None),
        call(content=""),
        call(content="", refusal=None),
        call(content=[]),
    ]
    text = TemplatedText(name)
    prompts = set()
    for form in forms:
        for returned in ("x", [block("x")]):
            for user in ("hi", [block("hi")]):
                result = {"role": "tool", "tool_call_id": "1", "content": returned}
                messages = [{"role": "user", "content": user}, form, result]
                prompts.add(prompt_of(chat_body(messages=messages), Chat(), text=text))
    assert len(prompts) == 1


def test_messages_are_the_same_as_text_and_as_a_block():
    prompts = set()
    for wrap in (
        lambda text: text,
        lambda text: [block(text)],
        lambda text: [block(text, cache_control={"type": "ephemeral"})],
    ):
        use = {"type": "tool_use", "id": "1", "name": "read", "input": {"path": "a"}}
        result = {"type": "tool_result", "tool_use_id": "1", "content": wrap("x")}
        messages = [
            {"role": "user", "content": wrap("hi")},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": wrap("done")},
            {"role": "system", "content": wrap("note")},
            {"role": "user", "content": wrap("go")},
        ]
        prompts.add(prompt_of(message_body(messages=messages, system=wrap("rules"))))
    assert len(prompts) == 1


def test_responses_are_the_same_as_text_and_as_parts():
    prompts = set()
    for wrap in (lambda text, _: text, lambda text, kind: [{"type": kind, "text": text}]):
        items = [
            {"role": "developer", "content": wrap("rules", "input_text")},
            {"type": "message", "role": "user", "content": wrap("hi", "input_text")},
            {"type": "function_call", "call_id": "1", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": wrap("x", "input_text")},
            {"role": "assistant", "content": wrap("done", "output_text")},
            {"role": "user", "content": wrap("go", "input_text")},
        ]
        prompts.add(prompt_of({"model": "fake", "input": items}, Responses()))
    assert len(prompts) == 1


def test_marks_for_caches_never_reach_the_prompt():
    mark = {"cache_control": {"type": "ephemeral"}}
    body = message_body(
        system=[block("rules", **mark)],
        tools=[{**TOOLS[0], **mark}],
        messages=[{"role": "user", "content": [block("hi", **mark)]}],
    )
    plain = message_body(system="rules", tools=TOOLS[:1])
    assert prompt_of(body) == prompt_of(plain)


# ---- what the user changes


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_changed_user_text_changes_only_the_end(one, other):
    sets = Memory()

    def made(user, nonce, tools):
        system = [block(LINE % (nonce, nonce)), block("rules")]
        return prompt_of(message_body(user, system=system, tools=tools), sets=sets)

    first, second = made(f"<{one}>", "a", TOOLS), made(f"<{other}>", "b", TOOLS[::-1])
    assert f"user:<{one}>\n" in first
    assert common(first, second) >= first.index("user:<")


# ---- what is told of it


def test_changes_are_counted_and_kept(tmp_path):
    journal = tmp_path / "journal.sqlite3"
    sets = ToolSets(tmp_path / "prompts.sqlite3", clock=time.time)
    text = FakeText(context_window=None)
    with running(Plan(text=text, journal_path=journal, tool_sets=sets)) as server:
        body = message_body(system=[block(LINE % ("a", "1")), block("rules")])
        server.http.post("/v1/messages", json={**body, "tools": TOOLS}).raise_for_status()
        server.http.post("/v1/messages", json={**body, "tools": TOOLS[::-1]}).raise_for_status()
        shown = server.http.get("/metrics").text
        assert 'omlx_prompt_changes_total{model="fake",rule="attribution"} 2.0' in shown
        assert 'omlx_prompt_changes_total{model="fake",rule="tool_order"} 4.0' in shown
    last = History(journal).last()
    assert last is not None
    assert last.changes == {Rule.ATTRIBUTION.value: 1, Rule.TOOL_ORDER.value: 4}


@pytest.mark.parametrize("isolate", ["none", "key"])
def test_callers_that_are_apart_have_orders_of_their_own(tmp_path, isolate):
    sets = ToolSets(tmp_path / "prompts.sqlite3", clock=time.time)
    keys = Keys(tmp_path / "keys.toml")
    keys.add("ann")
    keys.add("bob")
    plan = Plan(
        text=FakeText(context_window=None),
        tool_sets=sets,
        keys_path=keys.path,
        cache=Cache(isolate=isolate),
    )
    with running(plan) as server:
        counts = []
        for name, tools in (("ann", TOOLS), ("bob", TOOLS[::-1])):
            headers = keys.header(name)
            body = message_body(tools=tools)
            server.http.post("/v1/messages", json=body, headers=headers).raise_for_status()
            answer = server.http.post("/v1/messages/count_tokens", json=body, headers=headers)
            counts.append(answer.json()["input_tokens"])
        first, second = (bytes(request.tokens) for request in server.engine.submitted)
    assert (first == second) == (isolate == "none")
    assert counts == [len(first), len(second)]
