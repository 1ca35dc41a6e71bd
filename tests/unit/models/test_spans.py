"""The parts of a prompt, found in what templates of several kinds make of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from omlx.errors import ModelError
from omlx.models.spans import CharSpan, find_parts, tool_name
from omlx.models.text import TextModel
from omlx.models.tokenizer import FastCodec
from omlx.storage.entry import PartKind
from tests.unit.models import templates, tiny
from tests.unit.models.tiny import chat, text_folder

Found = dict[str, str]


def tool(name: str, **fields: object) -> dict[str, object]:
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": f"what {name} takes"}},
    }
    function = {"name": name, "description": f"does {name}", "parameters": parameters, **fields}
    return {"type": "function", "function": function}


TOOLS = [tool("read"), tool("write"), tool("read_all")]
CHAT = [
    *chat(("system", "Be brief."), ("user", "user"), ("assistant", "a"), ("user", "im_start")),
]


def parts_of(
    model: TextModel,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] = (),
    *,
    places: Sequence[int] = (),
    system_places: Sequence[int] = (),
) -> tuple[str, list[CharSpan]]:
    def render(
        messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]]
    ) -> str:
        return model.render(messages, tools=tools or None)

    plain = render(messages, tools)
    found = find_parts(plain, messages, tools, render, places=places, system_places=system_places)
    return plain, found


def texts(found: tuple[str, list[CharSpan]]) -> Found:
    plain, spans = found
    for before, after in zip(spans, spans[1:], strict=False):
        assert before.end <= after.start
    return {str(span.part): plain[span.start : span.end] for span in spans}


def model(tmp_path: Path, template: str) -> TextModel:
    return TextModel.load(text_folder(tmp_path, template=template))


def test_messages_are_found_although_the_template_says_the_same(tmp_path: Path) -> None:
    """Searching would find "user" and "im_start" in the marks of roles."""
    plain, spans = parts_of(model(tmp_path, templates.PLAIN), CHAT)
    assert texts((plain, spans)) == {
        "system block 0": "Be brief.",
        "message 1 (user)": "user",
        "message 2 (assistant)": "a",
        "message 3 (user)": "im_start",
    }
    assert plain[spans[1].start - 5 : spans[1].start] == "user\n"


def test_messages_count_as_in_the_body(tmp_path: Path) -> None:
    """The system of an Anthropic body is no entry of its messages."""
    places = {"places": (-1, 0, 1, 2), "system_places": (3,)}
    found = texts(parts_of(model(tmp_path, templates.PLAIN), CHAT, **places))
    assert list(found) == [
        "system block 3",
        "message 0 (user)",
        "message 1 (assistant)",
        "message 2 (user)",
    ]


def test_a_late_system_message_is_a_message(tmp_path: Path) -> None:
    messages = chat(("system", "A"), ("system", "B"), ("user", "C"), ("system", "D"))
    found = texts(parts_of(model(tmp_path, templates.PLAIN), messages))
    assert list(found.items()) == [
        ("system block 0", "A"),
        ("system block 1", "B"),
        ("message 2 (user)", "C"),
        ("message 3 (system)", "D"),
    ]


def test_each_text_of_the_system_is_a_block(tmp_path: Path) -> None:
    def blocks(*values: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": value} for value in values]

    messages = chat(("system", blocks("A.", " B.\n")), ("user", blocks("C", "D")))
    found = texts(parts_of(model(tmp_path, templates.PLAIN), messages))
    assert found["system block 0"] == "A." and found["system block 1"] == "B."
    assert found["message 1 (user)"].startswith("C") and found["message 1 (user)"].endswith("D")


@pytest.mark.parametrize("template", [templates.PARTS, templates.PARTS_OR_TEXT, templates.ITEMS])
def test_other_templates(tmp_path: Path, template: str) -> None:
    found = texts(parts_of(model(tmp_path, template), CHAT))
    assert list(found.values()) == ["Be brief.", "user", "a", "im_start"]


def test_tools_reach_to_the_ends_of_their_json(tmp_path: Path) -> None:
    found = texts(parts_of(model(tmp_path, templates.QWEN), CHAT, TOOLS))
    for idx, one in enumerate(TOOLS):
        assert json.loads(found[f'tool {idx} "{tool_name(one)}"']) == one
    assert found["system block 0"] == "Be brief."
    assert found["message 3 (user)"] == "im_start"


@pytest.mark.parametrize("indent", [2, 4])
def test_indented_tools(tmp_path: Path, indent: int) -> None:
    template = (
        f"{{% for t in tools %}}{{{{ t.function | tojson(indent={indent}) }}}}\n{{% endfor %}}"
    )
    found = texts(parts_of(model(tmp_path, template + templates.PLAIN), CHAT, TOOLS))
    for idx, one in enumerate(TOOLS):
        assert json.loads(found[f'tool {idx} "{tool_name(one)}"']) == one["function"]


def test_tools_in_another_form_reach_from_their_name_to_their_last_description(
    tmp_path: Path,
) -> None:
    template = (
        "{% for t in tools %}<tool>{{ t.function.name }}: {{ t.function.description }} "
        "{% for k, v in t.function.parameters.properties.items() %}({{ k }}: {{ v.description }})"
        "{% endfor %}</tool>{% endfor %}"
    )
    found = texts(parts_of(model(tmp_path, template + templates.PLAIN), CHAT, TOOLS))
    assert found['tool 1 "write"'] == "write: does write (path: what write takes"
    assert len(found) == 3 + 4


def test_calls_and_results_belong_to_their_messages(tmp_path: Path) -> None:
    call = {
        "type": "function",
        "function": {"name": "read", "arguments": '{"path": "a.txt", "lines": 5}'},
    }
    messages = [
        *chat(("user", "go")),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **call}]},
        {"role": "tool", "tool_call_id": "1", "content": "read"},
    ]
    found = texts(parts_of(model(tmp_path, templates.QWEN), messages, TOOLS))
    assert found["message 1 (assistant)"] == 'read", "arguments": {"path": "a.txt", "lines'
    assert found["message 2 (tool)"] == "read"


def test_texts_that_the_template_strips(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
    found = texts(parts_of(model(tmp_path, template), chat(("user", " \n x y\n"), ("user", "  "))))
    assert found == {"message 0 (user)": "x y"}


def test_a_part_of_a_text_that_the_template_drops(tmp_path: Path) -> None:
    """As reasoning templates do with the thoughts of earlier turns."""
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}"
    )
    messages = chat(("user", "x"), ("assistant", "<think>hm</think>well then"), ("user", "y"))
    found = texts(parts_of(model(tmp_path, template), messages))
    assert found["message 1 (assistant)"] == "well then"


def test_a_template_that_looks_at_the_text_is_searched(tmp_path: Path) -> None:
    """Marks would change what it prints."""
    template = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% if m.content.startswith('/') %}CMD {% endif %}{{ m.content }}{% endfor %}"
    )
    found = texts(parts_of(model(tmp_path, template), chat(("user", "/go on"), ("user", "now"))))
    assert found == {"message 0 (user)": "/go on", "message 1 (user)": "now"}


def test_a_template_that_refuses_the_marks_is_searched() -> None:
    def render(
        messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]]
    ) -> str:
        raise ModelError("no")

    messages = chat(("user", "one"), ("user", "two"))
    found = find_parts("<one><two>", messages, [], render)
    assert [(s.part.idx, s.start, s.end) for s in found] == [(0, 1, 4), (1, 6, 9)]


def test_private_characters_in_the_text_do_no_harm(tmp_path: Path) -> None:
    messages = chat(("user", "a\U000f0000b"), ("user", "c\U000f0001d"))
    found = texts(parts_of(model(tmp_path, templates.PLAIN), messages))
    assert list(found.values()) == ["a\U000f0000b", "c\U000f0001d"]


def test_nothing_to_find(tmp_path: Path) -> None:
    assert texts(parts_of(model(tmp_path, templates.PLAIN), chat(("user", "")))) == {}


def test_messages_are_not_changed(tmp_path: Path) -> None:
    messages, tools = json.dumps(CHAT), json.dumps(TOOLS)
    parts_of(model(tmp_path, templates.QWEN), CHAT, TOOLS)
    assert (json.dumps(CHAT), json.dumps(TOOLS)) == (messages, tools)


def test_names_of_tools() -> None:
    assert [
        tool_name(t) for t in ({"name": "x"}, {"function": {"name": "y"}}, {}, {"name": 3})
    ] == [
        "x",
        "y",
        "",
        "",
    ]


# ---- from characters to tokens


def test_ranges_of_characters_become_ranges_of_tokens(tmp_path: Path) -> None:
    model = TextModel.load(text_folder(tmp_path, template=templates.PLAIN))
    plain, spans = parts_of(model, chat(("user", "the é"), ("user", "the")))
    ids, ranges = model.encode_at(plain, [(span.start, span.end) for span in spans])
    assert ids == model.encode(plain)
    assert ranges is not None
    assert [model.spell(ids[start:end]) for start, end in ranges] == ["the é", "the"]


def test_a_token_over_the_edge_belongs_to_both_sides() -> None:
    """A range has every token that holds a character of it, also half of one."""
    model = TextModel(_codec(tiny.byte_level()), template=None)
    ids, ranges = model.encode_at("the the", [(0, 1), (1, 3), (4, 7), (3, 4), (7, 7)])
    assert [model.spell([i]) for i in ids] == ["the", " the"]
    assert ranges == [(0, 1), (0, 1), (1, 2), (1, 2), (2, 2)]


def test_a_character_of_several_tokens() -> None:
    model = TextModel(_codec(tiny.byte_level()), template=None)
    ids, ranges = model.encode_at("x€y", [(1, 2), (2, 3)])
    assert (len(ids), ranges) == (5, [(1, 4), (4, 5)])


def test_surrogates_that_change_the_length_leave_no_ranges() -> None:
    model = TextModel(_codec(tiny.byte_level()), template=None)
    assert model.encode_at("a\ud83d\ude00b", [(0, 1)])[1] is None
    assert model.encode_at("a\ud83db", [(2, 3)])[1] == [(4, 5)]


def _codec(tokenizer: Tokenizer) -> FastCodec:
    return FastCodec(tokenizer, decoder={"type": "ByteLevel"})


def test_kinds_have_the_words_of_the_journal() -> None:
    assert {kind.value for kind in PartKind} == {"system", "tool", "message"}
