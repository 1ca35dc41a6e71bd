"""Chains of an agent's turns, and where the prompt of one leaves that of the turn before."""

from dataclasses import dataclass

from omlx.server.prompt import render
from tests.fakes.templated import TemplatedText

_TOOL = {
    "type": "function",
    "function": {
        "name": "ls",
        "description": "Lists a folder.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
_HEAD = [{"role": "system", "content": "rules"}, {"role": "user", "content": "do it"}]
KINDS = ("echoed", "dropped", "user")


def _call(number: int, *, has_thought: bool):
    function = {"name": "ls", "arguments": f'{{"path":"/{number}"}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    return {**message, "reasoning_content": f"thought {number}"} if has_thought else message


def _returned(number: int):
    call_id = f"call_{number}"
    return {"role": "tool", "content": f"file {number}", "tool_call_id": call_id, "name": "ls"}


@dataclass(frozen=True)
class Step:
    """The prompts of a turn and of the next."""

    first: str
    second: str

    @property
    def shared(self) -> int:
        """How many characters the second has of the first."""
        pairs = enumerate(zip(self.first, self.second, strict=False))
        shortest = min(len(self.first), len(self.second))
        return next((at for at, (one, other) in pairs if one != other), shortest)


def step(name: str, kind: str) -> Step:
    """Two turns of a template: within a tool chain, whose reasoning the client echoes or drops, or
    with an unrelated message of the user's after the chain."""
    text, has_thought = TemplatedText(name), kind != "dropped"
    chain = [*_HEAD, _call(1, has_thought=has_thought), _returned(1)]
    if kind == "user":
        chain += [_call(2, has_thought=True), _returned(2)]
        done = {"role": "assistant", "content": "done", "reasoning_content": "thought 3"}
        after = [*chain, done, {"role": "user", "content": "another thing"}]
    else:
        after = [*chain, _call(2, has_thought=has_thought), _returned(2)]
    return Step(render(text, chain, [_TOOL]), render(text, after, [_TOOL]))
