"""Writes grammars of calls, in llguidance's kind of Lark.

Knows nothing about tokenizers, except which marks it is told are special tokens.
"""

import json
import re
from collections.abc import Callable, Mapping

from omlx.engine.constrain import json_rule
from omlx.models.config import mapping
from omlx.server.parse.said import Tools

# Whether the tokenizer has a special token of that text.
IsSpecial = Callable[[str], bool]
_NAMED = re.compile(r"<(\[[A-Z_]+\])>")


def never(mark: str) -> bool:
    """No mark is a special token."""
    return False


def mark(text: str, is_special: IsSpecial) -> str:
    """A mark as a grammar has it: the special token, or else its text."""
    if not is_special(text):
        return literal(text)
    return text if text.startswith("<") else f"<{text}>"


def numbered(grammar: str, token_id: Callable[[str], int | None]) -> str:
    """The grammar with the ids of special tokens like `[ARGS]`, which can't stand by name."""

    def number(found: re.Match[str]) -> str:
        known = token_id(found.group(1))
        return found.group() if known is None else f"<[{known}]>"

    return _NAMED.sub(number, grammar)


def literal(text: str) -> str:
    """A fixed text."""
    return json.dumps(text, ensure_ascii=False)


def signatures(tools: Tools) -> list[tuple[str, Mapping[str, object]]]:
    """Each tool's name, and the schema of its arguments."""
    found: list[tuple[str, Mapping[str, object]]] = []
    for tool in tools:
        function = mapping(tool.get("function"))
        schema = mapping(function.get("parameters"))
        found.append((str(function.get("name", "")), schema or {"type": "object"}))
    assert found, "a grammar of no tools"
    return found


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
        rules.append(f"args_{number}: {json_rule(schema)}")
    return "\n".join([*rules, f"call: {' | '.join(names)}"]) + "\n"


def many(more: str, *, is_parallel: bool) -> str:
    """One call or, if parallel, one or more with `more` between."""
    return f"call ({more} call)*" if is_parallel else "call"
