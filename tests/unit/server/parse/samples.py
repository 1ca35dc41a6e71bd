"""Answers of models in every format of calls, and what they say.

Knows nothing about the parsers.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Reasoning, Said, Text


@dataclass(frozen=True)
class Call:
    """A call; without arguments if they are not complete."""

    name: str
    arguments: Any
    is_ended: bool = True


@dataclass(frozen=True)
class Sample:
    """What a model says, and its parts: a string is text."""

    name: str
    text: str
    parts: Sequence[str | Reasoning | Call]
    is_cut: bool = False


def gathered(said: Sequence[Said]) -> list[str | Reasoning | Call]:
    """Parts as samples name them; asserts that calls are said in order."""
    parts: list[str | Reasoning | Call] = []
    texts: dict[int, str] = {}
    at: dict[int, int] = {}
    ended: set[int] = set()
    for part in said:
        match part:
            case Text():
                parts.append(part.text)
            case Reasoning():
                parts.append(part)
            case CallBegan(index, name):
                assert index == len(texts)
                texts[index], at[index] = "", len(parts)
                parts.append(Call(name, None, is_ended=False))
            case CallArguments(index, text):
                assert index == len(texts) - 1 and index not in ended
                texts[index] += text
            case CallEnded(index):
                assert index == len(texts) - 1 and index not in ended
                ended.add(index)
                call = parts[at[index]]
                assert isinstance(call, Call)
                parts[at[index]] = Call(call.name, json.loads(texts[index]))
    return parts


# Arguments that any format has to bring over as they are.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "no arguments": {},
    "nested object": {"a": {"b": {"c": [1, {"d": None}]}, "e": {}}},
    "array": {"a": [], "b": [1, 2.5, -3, 1e20], "c": [[True], [False, None]]},
    "quotes": {"a": 'say "hi"', "b": "it's", "c": "\\", "d": "\\\"'"},
    "newlines": {"a": "one\ntwo\r\nthree\ttab", "b": "\n"},
    "brackets in a string": {"a": "}]{[", "b": ",:", "c": "a=1, b(2)"},
    "emoji": {"a": "👍🏽 ok", "b": "naïve 日本語"},
    "like numbers": {"a": "007", "b": "1", "c": 7, "d": "true", "e": "null", "f": -0.5},
    "unicode keys": {"ключ": "значение"},
    "code": {"a": "def f():\n    return '<think>' if x[\"y\"] else {}\n"},
}

Write = Callable[[list[tuple[str, dict[str, Any]]]], str]


def _json_list(name: str, arguments: str) -> Callable[[list[tuple[str, dict[str, Any]]]], str]:
    def write(calls: list[tuple[str, dict[str, Any]]]) -> str:
        return json.dumps([{name: call, arguments: given} for call, given in calls])

    return write


def write_hermes(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Each call between tags."""
    written = [
        json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls
    ]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


def write_llama3(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Objects with semicolons between."""
    return "<|python_tag|>" + "; ".join(
        json.dumps({"name": name, "parameters": given}) for name, given in calls
    )


def write_pythonic(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Python's syntax."""
    written = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
        for name, given in calls
    ]
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def write_mistral(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Each name before its arguments."""
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in calls)


def write_mistral_json(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """A list of objects, the arguments first."""
    return "[TOOL_CALLS]" + json.dumps(
        [{"arguments": given, "name": name, "id": "abc123DEF"} for name, given in calls]
    )


_BEGIN, _END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"


def _all(calls: list[str]) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


def write_deepseek_v3(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """The arguments in a fence."""
    return _all([
        f"{_BEGIN}function{_SEP}{name}\n```json\n{json.dumps(given, ensure_ascii=False)}\n```{_END}"
        for name, given in calls
    ])  # fmt: skip


def write_deepseek_v31(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """The arguments behind the name."""
    return _all([f"{_BEGIN}{name}{_SEP}{json.dumps(given)}{_END}" for name, given in calls])


def write_granite(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """A list behind a mark."""
    return "<|tool_call|>" + _json_list("name", "arguments")(calls)


def write_cohere(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """A list between marks, with numbers."""
    listed = [
        {"tool_call_id": str(number), "tool_name": name, "parameters": given}
        for number, (name, given) in enumerate(calls)
    ]
    return f"<|START_ACTION|>{json.dumps(listed, indent=4)}<|END_ACTION|>"


WRITERS: dict[str, Write] = {
    "hermes": write_hermes,
    "llama3_json": write_llama3,
    "pythonic": write_pythonic,
    "llama4_pythonic": write_pythonic,  # marks are known, though its models write none
    "mistral": write_mistral,
    "mistral_json": write_mistral_json,
    "deepseek_v3": write_deepseek_v3,
    "deepseek_r1": write_deepseek_v3,
    "deepseek_v31": write_deepseek_v31,
    "granite": write_granite,
    "cohere": write_cohere,
}
CLOSERS = {
    "hermes": "</tool_call>", "llama3_json": "<|python_tag|>", "pythonic": "<|tool_call_end|>",
    "llama4_pythonic": "<|tool_call_end|>", "deepseek_r1": _END,
    "mistral": "[TOOL_CALLS]x", "mistral_json": "[TOOL_CALLS]x[ARGS]{", "deepseek_v3": _END,
    "deepseek_v31": _END, "granite": "<|tool_call|>", "cohere": "<|END_ACTION|>",
}  # fmt: skip


def _shared(format_name: str, write: Write) -> list[Sample]:
    """The samples that every format has."""
    a, b, c = ("get_time", {"zone": "UTC"}), ("mcp.read-it_2", {"path": "/a b"}), ("g", {})
    samples = [
        Sample(
            "only text", "Just text, with < and [ and {.\n", ["Just text, with < and [ and {.\n"]
        ),
        Sample("nothing", "", []),
        Sample("white space", " \n", [" \n"]),
        Sample("one call", write([a]), [Call(*a)]),
        Sample("two calls", write([a, b]), [Call(*a), Call(*b)]),
        Sample("three calls", write([c, a, b]), [Call(*c), Call(*a), Call(*b)]),
        Sample("text before", f"Let me see.\n\n{write([a])}", ["Let me see.", Call(*a)]),
        Sample("blanks around", f"\r\n {write([c])}\r\n", [Call(*c)]),
        Sample("text behind", f"{write([a])}\nThat is it.\n", [Call(*a), "That is it.\n"]),
        Sample("twice", f"A {write([c])} B {write([a])} C", ["A", Call(*c), "B", Call(*a), "C"]),
    ]
    closer = {"a": f"x {CLOSERS[format_name]} y", "b": "<tool_call>", "c": "</think>"}
    for name, given in {**ARGUMENTS, "the closing mark in a string": closer}.items():
        if format_name.endswith("pythonic") and name == "like numbers":
            given = {**given, "f": -0.5}
        samples.append(Sample(name, write([("f", given)]), [Call("f", given)]))
    whole = write([("f", {"a": "abc", "b": [1, 2]})])
    at = whole.index("abc") + 1
    samples += [
        Sample("cut in a string", whole[:at], [Call("f", None, is_ended=False)], is_cut=True)
        if format_name != "mistral_json"
        else Sample("cut in a string", whole[:at], [], is_cut=True),
        Sample("ended in a string", whole[:at], [Call("f", {"a": "a"})])
        if format_name != "mistral_json"
        else Sample("ended in a string", whole[:at], [whole[:at]]),
    ]
    return samples


def _tagged(call: str) -> str:
    return f"<tool_call>{call}</tool_call>"


_GET = Call("get", {"q": 1})
SPECIAL: dict[str, list[Sample]] = {
    "hermes": [
        Sample(
            "the tag in prose",
            "Write <tool_call> and </tool_call> around it.",
            ["Write <tool_call> and </tool_call> around it."],
        ),
        Sample("not JSON", _tagged("get 1") + " x", [_tagged("get 1") + " x"]),
        Sample(
            "arguments are a list",
            _tagged('{"name": "get", "arguments": [1]}'),
            [_tagged('{"name": "get", "arguments": [1]}')],
        ),
        Sample("no name", _tagged('{"arguments": {"q": 1}}'), [_tagged('{"arguments": {"q": 1}}')]),
        Sample(
            "good behind bad",
            _tagged("no") + _tagged('{"name": "get", "arguments": {"q": 1}}'),
            [_tagged("no"), _GET],
        ),
        Sample("arguments first", _tagged('{"arguments": {"q": 1}, "name": "get"}'), [_GET]),
        Sample(
            "arguments as a string", _tagged('{"name": "get", "arguments": "{\\"q\\": 1}"}'), [_GET]
        ),
        Sample(
            "a string, first",
            _tagged('{"arguments": " {\\"q\\": \\"\\\\u00e9\\\\n\\"}", "name": "f"}'),
            [Call("f", {"q": "é\n"})],
        ),
        Sample("arguments are null", _tagged('{"name": "f", "arguments": null}'), [Call("f", {})]),
        Sample("arguments are left out", _tagged('{"name": "f"}'), [Call("f", {})]),
        Sample(
            "Python's literals",
            _tagged("{'name': 'f', 'arguments': {'a': True, 'b': None}}"),
            [Call("f", {"a": True, "b": None})],
        ),
        Sample(
            "commas",
            _tagged('{"name": "f", "arguments": {"a": [1, 2,], "b": 1,},}'),
            [Call("f", {"a": [1, 2], "b": 1})],
        ),
        Sample(
            "missing commas",
            _tagged('{"name": "f", "arguments": {"a" 1 "b": [1 2]}}'),
            [Call("f", {"a": 1, "b": [1, 2]})],
        ),
        Sample(
            "a bracket too many",
            _tagged('{"name": "get", "arguments": {"q": 1}}}') + "ok",
            [_GET, "ok"],
        ),
        Sample(
            "a bracket too few",
            _tagged('{"name": "get", "arguments": {"q": 1}') + "ok",
            [_GET, "ok"],
        ),
        Sample(
            "two brackets too few",
            _tagged('{"name": "get", "arguments": {"q": 1') + "ok",
            [_GET, "ok"],
        ),
        Sample("no closing tag", '<tool_call>{"name": "get", "arguments": {"q": 1}}', [_GET]),
        Sample(
            "no closing tag between",
            2 * '<tool_call>{"name": "get", "arguments": {"q": 1}}\n',
            [_GET, _GET],
        ),
        Sample(
            "a line feed in a string",
            _tagged('{"name": "f", "arguments": {"a": "x\ny"}}'),
            [Call("f", {"a": "x\ny"})],
        ),
        Sample(
            "escapes",
            _tagged(r'{"name": "f", "arguments": {"a": "\x41\q\u00e9\ud83d\ude00"}}'),
            [Call("f", {"a": "A\\qé😀"})],
        ),
        Sample(
            "half a pair",
            _tagged(r'{"name": "f", "arguments": {"a": "\ud83d!", "b": "\ude00"}}'),
            [Call("f", {"a": "\ufffd!", "b": "\ufffd"})],
        ),
        Sample(
            "other keys",
            _tagged('{"id": [{"x": 1}], "name": "get", "arguments": {"q": 1}, "z": 2}'),
            [_GET],
        ),
        Sample(
            "function inside",
            _tagged('{"type": "function", "function": {"name": "get", "arguments": {"q": 1}}}'),
            [_GET],
        ),
        Sample(
            "a list",
            _tagged('[{"name": "get", "arguments": {"q": 1}}, {"name": "f"}]'),
            [_GET, Call("f", {})],
        ),
        Sample("cut in the tag", "Hi <tool", ["Hi <tool"], is_cut=True),
        Sample("cut before the name", 'Hi\n<tool_call>{"na', ["Hi"], is_cut=True),
        Sample("ended before the name", 'Hi\n<tool_call>{"na', ['Hi\n<tool_call>{"na']),
        Sample(
            "numbers",
            _tagged('{"name": "f", "arguments": {"a": 007, "b": 1., "c": 1.5e3}}'),
            [Call("f", {"a": "007", "b": "1.", "c": 1500.0})],
        ),
    ],
    "llama3_json": [
        Sample("bare", '{"name": "get", "parameters": {"q": 1}}', [_GET]),
        Sample(
            "bare, several",
            ' {"name": "get", "parameters": {"q": 1}}; {"name": "f", "arguments": {}}',
            [_GET, Call("f", {})],
        ),
        Sample(
            "bare JSON that is no call", '{"name": "Ann", "age": 7}', ['{"name": "Ann", "age": 7}']
        ),
        Sample("bare JSON with a name only", ' {"name": "Ann"} x', [' {"name": "Ann"} x']),
        Sample(
            "JSON behind text",
            'So: {"name": "f", "parameters": {}}',
            ['So: {"name": "f", "parameters": {}}'],
        ),
        Sample("code behind the tag", "<|python_tag|>print(1)", ["<|python_tag|>print(1)"]),
        Sample("bare, cut", '{"na', ['{"na'], is_cut=True),
    ],
    "pythonic": [
        Sample("bare", "[get(q=1), f()]", [_GET, Call("f", {})]),
        Sample("a link", "[see](http://x) it", ["[see](http://x) it"]),
        Sample("no names", "[get(1)]", ["[get(1)]"]),
        Sample(
            "JSON's literals",
            '[f(a=true, b=null, c={"d": false})]',
            [Call("f", {"a": True, "b": None, "c": {"d": False}})],
        ),
        Sample(
            "tuples and blanks",
            "[ f( a = (1, 2,), b='x' , ) ]",
            [Call("f", {"a": [1, 2], "b": "x"})],
        ),
        Sample("no closing mark", "<|tool_call_start|>[get(q=1)]", [_GET]),
        Sample("no brackets behind", "<|tool_call_start|>[get(q=1<|tool_call_end|>x", [_GET, "x"]),
    ],
    "mistral": [
        Sample("with an id", '[TOOL_CALLS]get[CALL_ID]a1b2c3d4e[ARGS]{"q": 1}', [_GET]),
        Sample("no mark between", '[TOOL_CALLS]get[ARGS]{"q": 1}get [ARGS] {"q": 1}', [_GET, _GET]),
        Sample("no mark of arguments", '[TOOL_CALLS]get{"q": 1}', [_GET]),
        Sample("a list", '[TOOL_CALLS] [{"name": "get", "arguments": {"q": 1}}]', [_GET]),
        Sample(
            "the mark in prose",
            "The mark [TOOL_CALLS] begins [ARGS].",
            ["The mark [TOOL_CALLS] begins [ARGS]."],
        ),
        Sample("arguments are no object", "[TOOL_CALLS]get[ARGS]7", ["[TOOL_CALLS]get[ARGS]7"]),
        Sample(
            "a word behind, cut", '[TOOL_CALLS]get[ARGS]{"q": 1} Done', [_GET, "Done"], is_cut=True
        ),
    ],
    "mistral_json": [
        Sample("an empty list", "[TOOL_CALLS][]", ["[TOOL_CALLS][]"]),
    ],
    "deepseek_v3": [
        Sample("no fence", f'{_BEGIN}function{_SEP}get\n{{"q": 1}}{_END}', [_GET]),
        Sample(
            "line feeds between",
            f'{_BEGIN}function{_SEP}get\n```json\n{{"q": 1}}\n```{_END}\n'
            f'{_BEGIN}function{_SEP}get\n```json\n{{\n"q": 1\n}}\n```{_END}',
            [_GET, _GET],
        ),
    ],
    "deepseek_v31": [
        Sample("no brackets", f"{_BEGIN}get{_SEP}1{_END}", [f"{_BEGIN}get{_SEP}1{_END}"]),
        Sample("a bracket too few", f'{_BEGIN}get{_SEP}{{"q": 1{_END}x', [_GET, "x"]),
        Sample("no separator", f"{_BEGIN}get{_END}", [f"{_BEGIN}get{_END}"]),
    ],
    "granite": [
        Sample(
            "between tags",
            '<tool_call>[{"name": "get", "arguments": {"q": 1}}]</tool_call>',
            [_GET],
        ),
        Sample(
            "with a closing mark",
            '<|tool_call|>[{"name": "get", "arguments": {"q": 1}}]<|/tool_call|>',
            [_GET],
        ),
        Sample(
            "bad behind good",
            '<|tool_call|>[{"name": "get", "arguments": {"q": 1}}, {"x": 2}] y',
            [_GET, ', {"x": 2}] y'],
        ),
    ],
    "cohere": [
        Sample("response marks", "<|START_RESPONSE|>Hi there.<|END_RESPONSE|>", ["Hi there."]),
        Sample("text marks", "<|START_TEXT|>Hi<|END_TEXT|>\n", ["Hi"]),
    ],
}
SPECIAL["llama4_pythonic"] = SPECIAL["pythonic"]
SPECIAL["deepseek_r1"] = SPECIAL["deepseek_v3"]

SAMPLES: dict[str, list[Sample]] = {
    name: [*_shared(name, write), *SPECIAL.get(name, [])] for name, write in WRITERS.items()
}
