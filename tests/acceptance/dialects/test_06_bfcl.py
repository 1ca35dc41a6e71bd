"""Point 6: tools and calls of BFCL through real templates: order and values survive both ways."""

import importlib
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from omlx.models.template import ChatTemplate
from omlx.server.parse.elements import element_formats
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, CallFormat, Said
from tests.acceptance.conftest import Figure

DATA = Path(__file__).parents[2] / "data"
ENTRIES: list[dict[str, Any]] = json.loads((DATA / "bfcl" / "entries.json").read_text())
# A template, and the format of its calls.
TEMPLATES = {
    "Qwen3-Coder": "qwen3_coder",
    "GLM-4.6": "glm4",
    "GLM-4.7-Flash": "glm47",
    "moonshotai-Kimi-K2": "kimi_k2",
    "MiniMax-M2": "minimax_m2",
    "openai-gpt-oss-120b": "harmony",
    "google-gemma-4-31B-it": "gemma",
    "openbmb-MiniCPM5-1B": "minicpm",
    "Qwen-Qwen3-0.6B": "hermes",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral_json",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "ibm-granite-granite-4.0": "hermes",
}
# These templates sort keys by name, write only one call of a message, or show no tools.
SORTS = {"gemma"}
ONE_CALL = {"harmony"}
NO_TOOLS = {"deepseek-ai-DeepSeek-V3.1"}


def formats() -> dict[str, CallFormat]:
    """Every format there is, by name."""
    known = {form.name: form for form in element_formats()}
    if importlib.util.find_spec("omlx.server.parse.formats"):
        registry = importlib.import_module("omlx.server.parse.formats")
        known |= registry.call_formats()
    return known


FORMATS = formats()


def template(name: str) -> ChatTemplate:
    source = (DATA / "templates" / f"{name}.jinja").read_text()
    special = {"bos_token": "", "eos_token": ""}
    return ChatTemplate({"default": source}, special=special, today=lambda: date(2026, 1, 2))


def call_id(form: str, index: int, name: str) -> str:
    return f"functions.{name}:{index}" if form == "kimi_k2" else f"call{index:05}"


def messages(entry: dict[str, Any], form: str) -> list[dict[str, Any]]:
    calls = [
        {
            "id": call_id(form, index, call["name"]),
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for index, call in enumerate(entry["calls"])
    ]
    question = {"role": "user", "content": entry["question"]}
    return [question, {"role": "assistant", "content": "", "tool_calls": calls}]


def render(chat: ChatTemplate, entry: dict[str, Any], some: Sequence[dict[str, Any]]) -> str:
    tools = entry["tools"]
    return chat.render(some, tools=tools, add_generation_prompt=False, extra={})


def calls_of(said: Sequence[Said]) -> list[tuple[str, str]]:
    """Name and arguments of the calls that have ended."""
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    ended: list[int] = []
    for one in said:
        match one:
            case CallBegan():
                names[one.index], texts[one.index] = one.name, ""
            case CallArguments():
                texts[one.index] += one.text
            case CallEnded():
                ended.append(one.index)
            case _:
                pass
    return [(names[index], texts[index]) for index in ended]


def in_order(value: Any, *, is_sorted: bool) -> Any:
    """The value as lists of pairs, so that the order of keys counts."""
    if isinstance(value, dict):
        pairs = [(key, in_order(one, is_sorted=is_sorted)) for key, one in value.items()]
        return sorted(pairs, key=lambda pair: pair[0].lower()) if is_sorted else pairs
    if isinstance(value, list):
        return [in_order(one, is_sorted=is_sorted) for one in value]
    return (type(value).__name__, value)


def names_of(tool: dict[str, Any], *, is_sorted: bool) -> list[str]:
    function = tool["function"]
    keys = list(function["parameters"]["properties"])
    return [function["name"], *(sorted(keys, key=str.lower) if is_sorted else keys)]


def shown_tools(text: str) -> list[Any]:
    """Every JSON object in the text that is a tool."""
    decoder, found = json.JSONDecoder(), []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            value, end = None, at + 1
        function = value.get("function", value) if isinstance(value, dict) else {}
        if isinstance(function, dict) and {"name", "parameters"} <= function.keys():
            found.append(function)
        at = text.find("{", end)
    return found


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in NO_TOOLS])
def test_tools_are_shown_in_their_order(name: str, figure: Figure) -> None:
    chat, form = template(name), TEMPLATES[name]
    num_as_json = 0
    for entry in ENTRIES:
        text = render(chat, entry, messages(entry, form)[:1])
        at = 0
        for tool in entry["tools"]:
            for word in names_of(tool, is_sorted=form in SORTS):
                found = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)").search(text, at)
                assert found, (entry["id"], word)
                at = found.end()
        shown = shown_tools(text)
        if shown:
            wanted = [tool["function"] for tool in entry["tools"]]
            same = [
                in_order({key: tool[key] for key in one}, is_sorted=False)
                == in_order(one, is_sorted=False)
                for tool, one in zip(wanted, shown, strict=True)
            ]
            assert all(same), entry["id"]
            num_as_json += 1
    figure(f"{name}: {len(ENTRIES)} entries in order, {num_as_json} equal as JSON")


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_come_back_as_they_were(name: str, figure: Figure) -> None:
    chat, form_name = template(name), TEMPLATES[name]
    form, is_sorted, num_calls = FORMATS[form_name], form_name in SORTS, 0
    for entry in ENTRIES:
        if form_name in ONE_CALL and len(entry["calls"]) > 1:
            entry = {**entry, "calls": entry["calls"][:1]}
        talk = messages(entry, form_name)
        whole = render(chat, entry, talk)
        before = os.path.commonprefix([whole, render(chat, entry, talk[:1])])
        parser = form.parser(entry["tools"])
        said = parser.add(whole[len(before) :]) + parser.finish(is_cut=False)
        found = [
            (tool, in_order(json.loads(text), is_sorted=is_sorted)) for tool, text in calls_of(said)
        ]
        wanted = [
            (call["name"], in_order(call["arguments"], is_sorted=is_sorted))
            for call in entry["calls"]
        ]
        assert found == wanted, entry["id"]
        num_calls += len(wanted)
    figure(f"{name}: {num_calls} calls of {len(ENTRIES)} entries came back as {form_name}")
