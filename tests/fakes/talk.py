"""A scripted model for real clients: it thinks, calls tools and answers in JSON when told to.

Reads its orders from the prompt that FakeText made, so it serves any dialect.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from omlx.engine.request import EngineRequest, Event, Failed, FailureCode, Token
from tests.fakes.engine import say

# What marks a template whose model thinks between marks and writes calls as Hermes does.
TEMPLATE = (
    "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    '<tool_call>\n{"name": "...", "arguments": {}}\n</tool_call>'
    "<think>\n\n</think>"
)
ANSWER = "Hello there 😀, how are you?"
# A prompt with this word fails once the answer has begun.
FAILS = "fail"
CITY = {"name": "Paris", "population": 2100000}
_VALUES: dict[str, object] = {"path": "a b", **CITY}
_TOOL = re.compile(r"^tool:(\{.+\})$", re.MULTILINE)
_TURN = re.compile(r"^(system|user|assistant|tool):", re.MULTILINE)


def talk(request: EngineRequest) -> Iterable[Sequence[Event]]:
    """A script: a call of the first tool until that has been answered, else a text."""
    prompt = bytes(request.tokens).decode()
    for step in say(answer_to(prompt), per_step=3)(request):
        if FAILS in prompt and any(isinstance(event, Token) for event in step):
            yield [Failed(request.id, FailureCode.ENGINE, "the engine died")]
            return
        yield [_scored(event) for event in step]


def answer_to(prompt: str) -> str:
    """What the model says to a prompt."""
    tools = [json.loads(found[1]) for found in _TOOL.finditer(prompt)]
    turns = _TURN.split(prompt)
    # What comes last is the assistant's own turn, which is still empty.
    role, said = (turns[-4], turns[-3]) if len(turns) > 4 else ("user", prompt)
    if tools and role != "tool":
        return f"<tool_call>\n{_call(tools[0])}\n</tool_call>"
    thoughts = "<think>\nWhich one?\n</think>\n\n" if "think" in said else ""
    return thoughts + (json.dumps(CITY) if "json" in said else ANSWER)


def _scored(event: Event) -> Event:
    """A token with log probabilities, which answers tell of only where that was asked for."""
    if not isinstance(event, Token):
        return event
    return replace(event, logprob=-0.5, top=((event.token, -0.5), (ord("x"), -1.5)))


def _call(tool: dict[str, Any]) -> str:
    function = tool["function"]
    properties = (function.get("parameters") or {}).get("properties") or {}
    arguments = {name: _VALUES.get(name, "x") for name in properties}
    return json.dumps({"name": function["name"], "arguments": arguments})
