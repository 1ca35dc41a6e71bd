"""Writes grammars of calls, in llguidance's kind of Lark.

Knows nothing about tokenizers, except the ids of special tokens it is told.
"""

import json
from collections.abc import Callable, Mapping
from typing import cast

from omlx.server.parse.said import Tools

# The id of a special token, or None where the tokenizer has none of that text.
SpecialId = Callable[[str], int | None]


def no_special(token: str) -> None:
    """The ids of a tokenizer without special tokens."""


def mark(text: str, special_id: SpecialId) -> str:
    """A mark as a grammar has it: the special token, or else its text."""
    token_id = special_id(text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def literal(text: str) -> str:
    """A fixed text."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Mapping[str, object]) -> str:
    """A JSON value that follows a schema."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def signatures(tools: Tools) -> list[tuple[str, Mapping[str, object]]]:
    """Each tool's name, and the schema of its arguments."""
    found: list[tuple[str, Mapping[str, object]]] = []
    for tool in tools:
        function = mapping(tool.get("function"))
        schema = mapping(function.get("parameters"))
        found.append((str(function.get("name", "")), schema or {"type": "object"}))
    assert found, "a grammar of no tools"
    return found


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object of JSON, else an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def calls_grammar(
    tools: Tools,
    call: Callable[[str], tuple[str, str]],
    *,
    around: tuple[str, str] = ("", ""),
    more: str = "",
    is_parallel: bool,
) -> str:
    """A grammar of calls.

    `call` gives what stands before and behind the arguments of a tool, each a piece of grammar;
    `around` stands before and behind all calls, `more` between two.
    """
    rules = [f"start: {around[0]} {many(more, is_parallel=is_parallel)} {around[1]}"]
    names: list[str] = []
    for number, (name, schema) in enumerate(signatures(tools)):
        before, behind = call(name)
        names.append(f"call_{number}")
        rules.append(f"call_{number}: {before} args_{number} {behind}")
        rules.append(f"args_{number}: {json_value(schema)}")
    return "\n".join([*rules, f"call: {' | '.join(names)}"]) + "\n"


def many(more: str, *, is_parallel: bool) -> str:
    """One call or, if parallel, one or more with `more` between."""
    return f"call ({more} call)*" if is_parallel else "call"
