"""Writes Lark grammars (llguidance's) of calls: which tool, and arguments by its schema.

Knows nothing about tokens: the caller says which marks are special ones of the tokenizer.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from omlx.engine.constrain import json_rule
from omlx.models.config import items, mapping
from omlx.server.parse.grammar import IsSpecial, never
from omlx.server.parse.said import Tools
from omlx.server.parse.typed import ANY, Schema, functions, target, types_of

# How deep a schema that holds itself is written out.
_MAX_DEPTH = 8
_TOKEN = re.compile(r"(<[^<>\s]+>)")


@dataclass(frozen=True, slots=True)
class Written:
    """How a template writes calls of elements; {} stands for a name."""

    section: tuple[str, str] = ("", "")
    call: tuple[str, str] = ("", "")
    argument: tuple[str, str] = ("", "")
    between: str = ""
    # Each call has a section of its own.
    is_section_each: bool = False


class Rules:
    """The rules of one grammar; each method that returns text returns what stands in a rule."""

    def __init__(self, is_special: IsSpecial = never) -> None:
        self._is_special = is_special
        self._lines: list[str] = []

    def rule(self, body: str, *, suffix: str = "") -> str:
        """Add a rule, return its name (mutates); with a suffix, it ends where that comes first."""
        name = f"r{len(self._lines)}"
        ends = f"[suffix={json.dumps(suffix)}]" if suffix else ""
        self._lines.append(f"{name}{ends}: {body}")
        return name

    def literal(self, text: str) -> str:
        """Text as it is, special tokens in it as tokens."""
        parts: list[str] = []
        plain = ""
        for part in _TOKEN.split(text):
            if _TOKEN.fullmatch(part) and self._is_special(part):
                parts += [json.dumps(plain)] * bool(plain) + [part]
                plain = ""
            else:
                plain += part
        return " ".join([*parts, *[json.dumps(plain)] * bool(plain)])

    def free(self, end: str) -> str:
        """Any text up to `end`, and that."""
        if any(self._is_special(part) for part in _TOKEN.findall(end)):
            return self.rule("/(?s:.*)/") + " " + self.literal(end)
        return self.rule("/(?s:.*)/", suffix=end)

    def json(self, schema: Schema, root: Schema) -> str:
        """A JSON value; `root` holds what the schema refers to."""
        defs = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return self.rule(json_rule({**schema, **defs}))

    def value(self, schema: object, root: Schema, end: str) -> str:
        """A value that stands as bare text, if it may be a string, and its end."""
        said = mapping(schema)
        choices = items(said.get("enum"))
        if choices and all(isinstance(choice, str) for choice in choices):
            names = " | ".join(json.dumps(str(choice)) for choice in choices)
            return f"({names}) {self.literal(end)}"
        types = types_of(schema, root)
        if types == ANY or "string" in types:
            return self.free(end)
        return f"{self.json(said, root)} {self.literal(end)}"

    def start(self, calls: Sequence[str], *, between: str, is_parallel: bool) -> str:
        """The alternatives of one call, or of several."""
        one = self.rule(" | ".join(calls) if calls else '""')
        several = f"{one} ({self.literal(between)} {one})*" if between else f"{one}+"
        return several if is_parallel else one

    def text(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self._lines]) + "\n"


def tagged_grammar(
    written: Written, tools: Tools, *, is_parallel: bool, is_special: IsSpecial
) -> str:
    """The grammar of calls that are elements."""
    rules = Rules(is_special)
    opener, closer = (rules.literal(part) for part in written.section)
    calls = [_element(rules, written, name, schema) for name, schema in functions(tools).items()]
    if written.is_section_each:
        calls = [f"{opener} {call} {closer}" for call in calls]
        return rules.text(rules.start(calls, between=written.between, is_parallel=is_parallel))
    some = rules.start(calls, between=written.between, is_parallel=is_parallel)
    return rules.text(f"{opener} {some} {closer}")


def json_grammar(
    written: Written,
    tools: Tools,
    *,
    is_parallel: bool,
    is_special: IsSpecial,
    before: Callable[[Rules, str], str],
) -> str:
    """The grammar of calls whose arguments are one JSON object, behind what `before` writes."""
    rules = Rules(is_special)
    opener, closer = (rules.literal(part) for part in written.section)
    calls = [
        f"{before(rules, name)} {rules.json(_object(schema), schema)} "
        f"{rules.literal(written.call[1])}"
        for name, schema in functions(tools).items()
    ]
    some = rules.start(calls, between=written.between, is_parallel=is_parallel)
    return rules.text(f"{opener} {some} {closer}")


def required(schema: Schema) -> list[tuple[str, object, bool]]:
    """The arguments of a tool: key, schema, and whether it is required."""
    needed = set(map(str, items(schema.get("required"))))
    return [(k, v, k in needed) for k, v in mapping(schema.get("properties")).items()]


def loose_object(
    rules: Rules, schema: Schema, root: Schema, quote: str, depth: int = _MAX_DEPTH
) -> str:
    """An object with bare keys, and strings between quotes of the dialect's own."""
    first, later = '"}"', '"}"'
    for key, one, is_needed in reversed(required(schema)):
        value = loose_value(rules, one, root, quote, depth)
        pair = f"{json.dumps(key + ':')} {value}"
        rest = rules.rule(later)
        with_pair = f"{pair} {rest}"
        first = with_pair if is_needed else f"{with_pair} | {rules.rule(first)}"
        later = f'"," {with_pair}' if is_needed else f'"," {with_pair} | {rest}'
    return f'"{{" {rules.rule(first)}'


def loose_value(rules: Rules, schema: object, root: Schema, quote: str, depth: int) -> str:
    """A value of such an object."""
    said = target(schema, root)
    types = types_of(said, root)
    if types == ANY or not depth:
        types = frozenset({"string"})
    found: list[str] = []
    if "string" in types:
        found.append(_quoted(rules, said, quote))
    if "array" in types:
        one = rules.rule(loose_value(rules, said.get("items"), root, quote, depth - 1))
        found.append(f'"[" ({one} ("," {one})*)? "]"')
    if "object" in types:
        found.append(loose_object(rules, said, root, quote, depth - 1))
    if others := sorted(types - {"string", "array", "object"}):
        found.append(rules.json({"type": others}, root))
    return f"({' | '.join(found)})"


def _quoted(rules: Rules, schema: Schema, quote: str) -> str:
    mark = rules.literal(quote)
    choices = items(schema.get("enum"))
    if choices and all(isinstance(choice, str) for choice in choices):
        names = " | ".join(json.dumps(str(choice)) for choice in choices)
        return f"{mark} ({names}) {mark}"
    return f"{mark} {rules.free(quote)}"


def _element(rules: Rules, written: Written, name: str, schema: Schema) -> str:
    parts = [rules.literal(written.call[0].replace("{}", name))]
    for key, one, is_required in required(schema):
        before = rules.literal(written.argument[0].replace("{}", key))
        value = f"{before} {rules.value(one, schema, written.argument[1])}"
        parts.append(value if is_required else f"({value})?")
    return rules.rule(" ".join([*parts, rules.literal(written.call[1])]))


def _object(schema: Schema) -> Mapping[str, object]:
    return schema if schema.get("type") == "object" else {"type": "object", **schema}
