"""Requests of the size that coding agents send, in two dialects, and a model folder for them.

Knows nothing about servers. The words are made up from a seed, spread as words of a language are.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

NUM_MESSAGES = 180
NUM_BYTES = 100_000
PLAIN, TOOLS = "plain", "tools"  # two models: the demo model's own template, and one with tools
_NUM_TOOLS = 12
_WINDOW = 131_072
_SYLLABLES = ("ra", "to", "mi", "len", "su", "por", "ket", "an", "vor", "il", "dem", "qua", "shi")
_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# As templates of this family write tools and calls.
_TEMPLATE = """
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\n\\nFor each call, say a JSON object within tags:\\n<tool_call>\\n' }}
{{- '{"name": name, "arguments": object}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def write_models(demo: Path, folder: Path) -> None:
    """Make model folders without weights from the text files of the demo model."""
    for name in (PLAIN, TOOLS):
        path = folder / name
        path.mkdir(parents=True)
        for file in _TEXT_FILES:
            shutil.copy(demo / file, path / file)
        config = json.loads((demo / "config.json").read_text())
        config["max_position_embeddings"] = _WINDOW
        (path / "config.json").write_text(json.dumps(config))
        named = json.loads((path / "tokenizer_config.json").read_text())
        named["model_max_length"] = _WINDOW
        (path / "tokenizer_config.json").write_text(json.dumps(named))
        (path / "generation_config.json").write_text('{"eos_token_id": 2}')
        (path / "model.safetensors").write_bytes(b"")
    (folder / TOOLS / "chat_template.jinja").write_text(_TEMPLATE)


@cache
def _words() -> tuple[str, ...]:
    rng = random.Random(5)
    return tuple("".join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3)))) for _ in range(3000))


def _text(rng: random.Random, num_chars: int) -> str:
    """Lines of prose and of something like code."""
    words = _words()
    out: list[str] = []
    size = 0
    while size < num_chars:
        picked = [words[min(int(rng.paretovariate(0.6)), len(words)) - 1] for _ in range(9)]
        if rng.random() < 0.4:
            name, value = picked[0], rng.randrange(10_000)
            line = f"    {name}_{picked[1]} = {picked[2]}.{picked[3]}({value}, {picked[4]!r})\n"
        else:
            line = " ".join(picked).capitalize() + ".\n"
        out.append(line)
        size += len(line)
    return "".join(out)


def _tool(idx: int) -> tuple[str, str, dict[str, object]]:
    rng = random.Random(idx)
    properties = {
        name: {"type": "string", "description": _text(rng, 60).strip()}
        for name in ("path", "text", "pattern")
    }
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": ["path"]}
    return f"tool_{idx}", _text(rng, 250).strip(), schema


def chat_body(model: str, number: int, turn: int = 0) -> bytes:
    """A chat request; those of different numbers share nothing but their tools.

    Those of different turns share all but their last message.
    """
    tools = [
        {
            "type": "function",
            "function": {"name": name, "description": about, "parameters": schema},
        }
        for name, about, schema in map(_tool, range(_NUM_TOOLS))
    ]
    head = {"model": model, "stream": True, "temperature": 0, "tools": tools}
    return _filled(head, number, turn, _chat_turns)


def message_body(model: str, number: int, turn: int = 0) -> bytes:
    """The same conversation as a request for a message."""
    tools = [
        {"name": name, "description": about, "input_schema": schema}
        for name, about, schema in map(_tool, range(_NUM_TOOLS))
    ]
    head = {"model": model, "stream": True, "max_tokens": 10_000, "tools": tools}
    return _filled(head, number, turn, _message_turns)


Turn = tuple[
    str, str, dict[str, str], str
]  # what is said, the call's id, its arguments, its result
Write = Callable[[str, list[Turn], str], dict[str, object]]


def _filled(head: dict[str, object], number: int, turn: int, write: Write) -> bytes:
    """A body of NUM_BYTES and NUM_MESSAGES, whose texts have the length that this takes."""
    empty = json.dumps({**head, **write("", list(_turns(number, 0)), "")}).encode()
    num_turns = NUM_MESSAGES // 2 - 1
    # A line break and a quote take two bytes.
    per_turn = int((NUM_BYTES - len(empty)) / (num_turns + 2) / 1.04)
    rng = random.Random(number)
    system = f"Conversation {number}. " + _text(rng, per_turn)
    last = _text(random.Random(f"{number} {turn}"), per_turn)
    body = {**head, **write(system, list(_turns(number, per_turn)), last)}
    return json.dumps(body).encode()


def _turns(number: int, num_chars: int) -> Iterator[Turn]:
    rng = random.Random(1000 + number)
    for idx in range(NUM_MESSAGES // 2 - 1):
        said = _text(rng, num_chars // 5)
        arguments = {"path": f"src/file_{idx}.py", "text": _text(rng, num_chars // 5)}
        yield said, f"call_{number}_{idx}", arguments, _text(rng, num_chars * 3 // 5)


def _chat_turns(system: str, turns: list[Turn], last: str) -> dict[str, object]:
    messages: list[object] = [{"role": "system", "content": system}]
    for said, call_id, arguments, result in turns:
        function = {"name": "tool_1", "arguments": json.dumps(arguments)}
        call = {"id": call_id, "type": "function", "function": function}
        messages.append({"role": "assistant", "content": said, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    return {"messages": [*messages, {"role": "user", "content": last}]}


def _message_turns(system: str, turns: list[Turn], last: str) -> dict[str, object]:
    messages: list[object] = [{"role": "user", "content": "Begin."}]
    for said, call_id, arguments, result in turns:
        use = {"type": "tool_use", "id": call_id, "name": "tool_1", "input": arguments}
        text = {"type": "text", "text": said}
        messages.append({"role": "assistant", "content": [text, use]})
        returned = {"type": "tool_result", "tool_use_id": call_id, "content": result}
        messages.append({"role": "user", "content": [returned]})
    messages.append({"role": "user", "content": last})
    return {"system": system, "messages": messages}
