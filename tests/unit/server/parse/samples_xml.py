"""Answers in each dialect of elements and objects, and what they say."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlx.server.parse.said import (
    CallArguments,
    CallBegan,
    CallEnded,
    Reasoning,
    Said,
    Text,
)

Call = tuple[str, dict[str, object]]
# Text, a call, ("think", reasoning) or ("open", name, arguments so far).
Part = str | tuple[str, object] | tuple[str, str, str]


@dataclass(frozen=True)
class Sample:
    """An answer and its parts; `is_cut`: a limit ended it."""

    name: str
    text: str
    parts: list[Part]
    is_cut: bool = False


def schema(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)[:1]}


def tool(name: str, parameters: dict[str, object]) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


S, N, INT, B = ({"type": name} for name in ("string", "number", "integer", "boolean"))
POINT = {"type": "object", "properties": {"x": N, "y": N}, "required": ["x", "y"]}
TOOLS = [
    tool("write", schema(path=S, content=S, mode={"type": "string", "enum": ["new", "add"]})),
    tool("look", schema()),
    tool(
        "draw",
        schema(
            at=POINT,
            colours={"type": "array", "items": S},
            width=INT,
            scale=N,
            is_filled=B,
            label={"anyOf": [S, {"type": "null"}]},
        ),
    ),
]

CALLS: dict[str, list[Call]] = {
    "one": [("write", {"path": "a"})],
    "two": [("write", {"path": "a", "content": "b"}), ("look", {})],
    "no arguments": [("look", {})],
    "string like a number": [("write", {"path": "007", "content": "1e3", "mode": "new"})],
    "string like JSON": [("write", {"path": '{"a": [1]}', "content": "null"})],
    "tags of others": [("write", {"path": "a", "content": "<b>x</b></div> <a href='#'> </x>"})],
    "quotes": [("write", {"path": "a", "content": "say \"hi\" \\ 'there' \\n"})],
    "lines": [("write", {"path": "a b", "content": "one\n\n  two\n"})],
    "crlf": [("write", {"path": "a", "content": "one\r\ntwo"})],
    "empty string": [("write", {"path": "", "content": " "})],
    "unicode": [("write", {"path": "naïve", "content": "日本 👩‍💻 \u00a0é"})],
    "object": [("draw", {"at": {"x": 1.5, "y": -2}})],
    "array": [("draw", {"at": {"x": 0, "y": 0}, "colours": ["red", "a b", "7"]})],
    "types": [
        (
            "draw",
            {
                "at": {"x": 1e3, "y": 0},
                "colours": [],
                "width": 3,
                "scale": 0.25,
                "is_filled": True,
                "label": None,
            },
        )
    ],
    "three": [("look", {}), ("write", {"path": "1"}), ("look", {})],
}


def bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, object]) -> str:
        pairs = (f"<parameter={k}>\n{bare(v)}\n</parameter>\n" for k, v in arguments.items())
        return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def glm(calls: Sequence[Call], *, mark: str = "", line: str = "\n") -> str:
    def one(name: str, arguments: dict[str, object]) -> str:
        pairs = (
            f"<{mark}arg_key>{k}</{mark}arg_key>{line}"
            f"<{mark}arg_value>{bare(v)}</{mark}arg_value>{line}"
            for k, v in arguments.items()
        )
        return f"<{mark}tool_call>{name}{line}{''.join(pairs)}</{mark}tool_call>"

    return line.join(one(*call) for call in calls)


def invokes(calls: Sequence[Call], *, section: str = "minimax:tool_call", mark: str = "") -> str:
    def one(name: str, arguments: dict[str, object]) -> str:
        pairs = (
            f'<{mark}parameter name="{k}">{bare(v)}</{mark}parameter>\n'
            for k, v in arguments.items()
        )
        return f'<{mark}invoke name="{name}">\n{"".join(pairs)}</{mark}invoke>\n'

    return f"<{section}>\n{''.join(one(*call) for call in calls)}</{section}>"


def minicpm(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, object]) -> str:
        pairs = (f'<param name="{k}">{quoted(bare(v))}</param>' for k, v in arguments.items())
        return f'<function name="{name}">{"".join(pairs)}</function>'

    def quoted(text: str) -> str:
        return f"<![CDATA[{text}]]>" if set("<&\n") & set(text) else text

    return "\n".join(one(*call) for call in calls)


def kimi(calls: Sequence[Call]) -> str:
    def one(index: int, name: str, arguments: dict[str, object]) -> str:
        return (
            f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
            f"{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|>"
        )

    inner = "".join(one(index, *call) for index, call in enumerate(calls))
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def harmony(calls: Sequence[Call]) -> str:
    def one(name: str, arguments: dict[str, object]) -> str:
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return f"{head}{json.dumps(arguments, ensure_ascii=False)}<|call|>"

    return "<|start|>assistant".join(one(*call) for call in calls)


def gemma(calls: Sequence[Call], *, marks: tuple[str, str, str]) -> str:
    opener, closer, quote = marks

    def written(value: object) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}:{written(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(written, value)) + "]"
        return json.dumps(value)

    return "".join(f"{opener}call:{name}{written(args)}{closer}" for name, args in calls)


def gemma4(calls: Sequence[Call]) -> str:
    return gemma(calls, marks=("<|tool_call>", "<tool_call|>", '<|"|>'))


def function_gemma(calls: Sequence[Call]) -> str:
    return gemma(calls, marks=("<start_function_call>", "<end_function_call>", "<escape>"))


WRITERS: dict[str, Callable[[Sequence[Call]], str]] = {
    "qwen3_coder": qwen,
    "glm4": glm,
    "laguna": glm,
    "glm47": lambda calls: glm(calls, line=""),
    "longcat": lambda calls: glm(calls, mark="longcat_"),
    "minimax_m2": invokes,
    "muse_spark": lambda calls: invokes(calls, section="atem:function_calls", mark="atem:"),
    "minicpm": minicpm,
    "kimi_k2": kimi,
    "harmony": harmony,
    "gemma": gemma4,
    "function_gemma": function_gemma,
}


def _of_writer(write: Callable[[Sequence[Call]], str]) -> list[Sample]:
    samples = [Sample(name, write(calls), [*calls]) for name, calls in CALLS.items()]
    one = CALLS["one"]
    is_harmony = write is harmony
    if not is_harmony:
        text = write(one)
        samples += [
            Sample("text before", f"I look.\n\n{text}", ["I look.\n\n", *one]),
            Sample("text after", f"{text}\n\nDone", [*one, "\n\nDone"]),
            Sample("space around", f"\n {text} \n", [*one]),
            Sample("text only", " a < b, <x> and {y}\n", [" a < b, <x> and {y}\n"]),
        ]
    return samples


_A = ("write", {"path": "a"})
_CODER = [
    Sample("bare", "<function=write><parameter=path>a</parameter></function>", [_A]),
    Sample(
        "bare by name",
        '<function name="write">\n<parameter name="path">\na\n</parameter>\n</function>',
        [_A],
    ),
    Sample(
        "no first mark",
        "Hi\n<function=write>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
        ["Hi\n", _A],
    ),
    Sample("mark in prose", "A <tool_call> or <function=f>.", ["A <tool_call> or <function=f>."]),
    Sample("bare in prose", "As <function=write> shows", ["As <function=write> shows"]),
    Sample("garbage", "<tool_call>\n{x}\n</tool_call>", ["<tool_call>\n{x}\n</tool_call>"]),
    Sample("name not ended", "<tool_call>\n<function=wri", ["<tool_call>\n<function=wri"]),
    Sample("no end", "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>", [_A]),
    Sample("value not ended", "<tool_call>\n<function=write>\n<parameter=path>\na", [_A]),
    Sample(
        "value not ended but call",
        "<tool_call>\n<function=write>\n<parameter=path>\na\n</function>\n</tool_call>\n",
        [_A],
    ),
    Sample(
        "value not ended but bare call",
        "<function=write>\n<parameter=path>\na</function>",
        [_A],
    ),
    Sample(
        "call ended in a value",
        "<function=write><parameter=path>a</function> </tool_call> b</function></parameter>",
        [("write", {"path": "a</function> </tool_call> b</function>"})],
    ),
    Sample(
        "call in a call",
        "<tool_call><function=look><function=write><parameter=path>a</parameter></function>",
        [("look", {}), _A],
    ),
    Sample(
        "two in one section",
        "<tool_call><function=look></function> <function=look></function></tool_call>x",
        [("look", {}), ("look", {}), "x"],
    ),
    Sample(
        "cdata",
        "<tool_call><function=write><parameter=path> <![CDATA[</parameter>]]]]><![CDATA[>]]>\n"
        "</parameter></function></tool_call>",
        [("write", {"path": "</parameter>]]>"})],
    ),
    Sample(
        "its own end in a value",
        "<tool_call><function=write><parameter=path>a</parameter>b</parameter></function>",
        [_A],
    ),
    Sample(
        "other ends in a value",
        "<function=write><parameter=path></function></tool_call></parameter></function>",
        [("write", {"path": "</function></tool_call>"})],
    ),
    Sample(
        "crlf lines",
        "<function=write>\r\n<parameter=path>\r\na\r\nb\r\n</parameter>\r\n</function>",
        [("write", {"path": "a\r\nb"})],
    ),
    Sample(
        "unknown tool and keys",
        "<tool_call><function=f><parameter=n>7</parameter><parameter=s>x 7</parameter>"
        "<parameter=z>007</parameter></function></tool_call>",
        [("f", {"n": 7, "s": "x 7", "z": "007"})],
    ),
    Sample(
        "python values",
        "<function=draw><parameter=at>{'x': 1, 'y': None}</parameter>"
        "<parameter=is_filled>True</parameter></function>",
        [("draw", {"at": {"x": 1, "y": None}, "is_filled": True})],
    ),
    Sample(
        "cut in a string",
        "<tool_call>\n<function=write>\n<parameter=path>\nab\n</par",
        [("open", "write", '{"path": "ab')],
        is_cut=True,
    ),
    Sample(
        "cut in a number",
        "<tool_call><function=draw><parameter=width>12",
        [("open", "draw", '{"width": ')],
        is_cut=True,
    ),
    Sample("cut before the name", "x <tool_call>\n<function=wr", ["x "], is_cut=True),
    Sample("cut in a mark", "x <tool_", ["x <tool_"], is_cut=True),
]
_GLM = [
    Sample("mark in prose", "Use <tool_call> here.", ["Use <tool_call> here."]),
    Sample("no end", "<tool_call>write<arg_key>path</arg_key><arg_value>a</arg_value>", [_A]),
    Sample(
        "next without end",
        "<tool_call>write<arg_key>path</arg_key><arg_value>a</arg_value><tool_call>look</tool_call>",
        [_A, ("look", {})],
    ),
    Sample(
        "key without value",
        "<tool_call>write<arg_key>x</arg_key><arg_key>path</arg_key><arg_value>a</arg_value>"
        "</tool_call>",
        [_A],
    ),
    Sample(
        "cut",
        "<tool_call>write<arg_key>path</arg_key><arg_value>a</arg",
        [("open", "write", '{"path": "a')],
        is_cut=True,
    ),
]
_KIMI_CALL = "<|tool_call_begin|>functions.write:3<|tool_call_argument_begin|>"
_KIMI = [
    Sample("spaces kept", _KIMI_CALL + ' {"path" : "a" }<|tool_call_end|>', [_A]),
    Sample("open string", _KIMI_CALL + '{"path": "a<|tool_call_end|>', [_A]),
    Sample("comma too many", _KIMI_CALL + '{"path": "a",}<|tool_call_end|>', [_A]),
    Sample("open object", _KIMI_CALL + '{"path": "a"', [_A]),
    Sample("no value", _KIMI_CALL + '{"path"<|tool_call_end|>', [("write", {"path": None})]),
    Sample("bad escape", _KIMI_CALL + '{"path": "\\q\\u12"}', [("write", {"path": "\\q\\u12"})]),
    Sample("raw newline", _KIMI_CALL + '{"path": "a\n\tb"}', [("write", {"path": "a\n\tb"})]),
    Sample("no object", _KIMI_CALL + "<|tool_call_end|>x", [("write", {}), "x"]),
    Sample("a list", _KIMI_CALL + "[1]<|tool_call_end|>", [("write", {})]),
    Sample(
        "no name",
        "<|tool_call_begin|> <|tool_call_end|>",
        ["<|tool_call_begin|> <|tool_call_end|>"],
    ),
    Sample("cut", _KIMI_CALL + '{"path": "a\\', [("open", "write", '{"path": "a')], is_cut=True),
]
_HARMONY = [
    Sample(
        "all channels",
        '<|channel|>analysis<|message|>I "think"<|end|><|start|>assistant<|channel|>commentary'
        "<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.look "
        "<|constrain|>json<|message|>{}<|call|>",
        [("think", 'I "think"'), "Let me see.", ("look", {})],
    ),
    Sample(
        "final",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final"
        "<|message|>b\n<|return|>",
        [("think", "a"), "b\n"],
    ),
    Sample(
        "recipient first",
        ' to=functions.write<|channel|>x json<|message|>{"path":"a"}',
        [_A],
    ),
    Sample(
        "role first",
        '<|start|>assistant to=functions.write<|channel|>commentary<|message|>{"path":"a"}<|call|>',
        [_A],
    ),
    Sample("plain", "a < b", ["a < b"]),
    Sample(
        "open string", '<|channel|>commentary to=functions.write<|message|>{"path":"a<|call|>', [_A]
    ),
    Sample("own tool", "<|channel|>analysis to=python<|message|>1+1<|call|>", [("think", "1+1")]),
    Sample("no message", "<|channel|>final", ["final"]),
    Sample(
        "no end",
        "<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
        [("think", "a"), "b"],
    ),
    Sample(
        "cut",
        '<|channel|>commentary to=functions.write<|message|>{"path": "a',
        [("open", "write", '{"path": "a')],
        is_cut=True,
    ),
]
_GEMMA = [
    Sample(
        "loose", "<|tool_call>call:write{ path : a b , }<tool_call|>", [("write", {"path": "a b"})]
    ),
    Sample("number for a string", "<|tool_call>call:write{path:007}", [("write", {"path": "007"})]),
    Sample(
        "braces in a string",
        '<|tool_call>call:write{path:<|"|>a}, b:{<|"|>}<tool_call|>',
        [("write", {"path": "a}, b:{"})],
    ),
    Sample("string not ended", '<|tool_call>call:write{path:<|"|>a<tool_call|>', [_A]),
    Sample("no call", "<|tool_call>what{}<tool_call|>", ["<|tool_call>what{}<tool_call|>"]),
    Sample(
        "cut", '<|tool_call>call:write{path:<|"|>a', [("open", "write", '{"path":"a')], is_cut=True
    ),
]
_MINIMAX = [
    Sample(
        "garbage",
        "<minimax:tool_call>x</minimax:tool_call>",
        ["<minimax:tool_call>x</minimax:tool_call>"],
    ),
    Sample(
        "no section", '<invoke name="write"><parameter name="path">a</parameter></invoke>', [_A]
    ),
    Sample("single quotes", "<minimax:tool_call><invoke name='look'></invoke>", [("look", {})]),
    Sample(
        "lines are kept",
        '<minimax:tool_call><invoke name="write"><parameter name="path">\na\n'
        "</parameter></invoke></minimax:tool_call>",
        [("write", {"path": "\na\n"})],
    ),
]
_ODD = {
    "qwen3_coder": _CODER,
    "glm4": _GLM,
    "laguna": _GLM,
    "kimi_k2": _KIMI,
    "harmony": _HARMONY,
    "gemma": _GEMMA,
    "minimax_m2": _MINIMAX,
}

SAMPLES: dict[str, list[Sample]] = {
    name: [*_of_writer(write), *_ODD.get(name, [])] for name, write in WRITERS.items()
}


def joined(said: Sequence[Said]) -> list[Said]:
    """The same, with neighbours of one kind as one."""
    out: list[Said] = []
    for one in said:
        last = out[-1] if out else None
        match last, one:
            case Text(), Text():
                out[-1] = Text(last.text + one.text, last.at)
            case Reasoning(), Reasoning():
                out[-1] = Reasoning(last.text + one.text)
            case CallArguments(), CallArguments() if last.index == one.index:
                out[-1] = CallArguments(one.index, last.text + one.text)
            case _:
                out.append(one)
    return out


def parts(said: Sequence[Said]) -> list[Part]:
    """What was said, in the form of a sample's parts."""
    out: list[Part] = []
    name, text = "", ""
    num_calls = 0
    for one in said:
        match one:
            case Text():
                out.append(one.text)
            case Reasoning():
                out.append(("think", one.text))
            case CallBegan():
                assert one.index == num_calls
                num_calls += 1
                name, text = one.name, ""
                out.append(("open", name, text))
            case CallArguments():
                text += one.text
                out[-1] = ("open", name, text)
            case CallEnded():
                out[-1] = (name, json.loads(text))
    return out
