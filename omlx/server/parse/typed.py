"""Values that a model wrote as bare text, as JSON of the type that the tool's schema wants.

Knows nothing about the markup around a value.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterable, Mapping

from omlx.models.config import items, mapping
from omlx.server.parse.said import Tools

Schema = Mapping[str, object]
Types = frozenset[str]

ANY: Types = frozenset()
_STRING = frozenset({"string"})
# Names that schemas made by hand use for JSON's own.
_NAMES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}
_KNOWN = {"string", "integer", "number", "boolean", "object", "array", "null"}
_VALUE_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
_LITERALS = {"true": "true", "false": "false", "True": "true", "False": "false"}
_NOTHING = {"null", "None"}
_MAX_DEPTH = 16


def functions(tools: Tools) -> dict[str, Schema]:
    """The schema of the arguments of each tool, by its name and in the request's order."""
    found: dict[str, Schema] = {}
    for tool in tools:
        function = mapping(tool.get("function"))
        name = function.get("name")
        if isinstance(name, str) and name:
            found[name] = mapping(function.get("parameters"))
    return found


def types_of(schema: object, root: Schema) -> Types:
    """The JSON types that a schema allows, ANY if it does not say; `root` holds its references."""
    return _types(schema, root, _MAX_DEPTH)


def target(schema: object, root: Schema) -> Schema:
    """The schema itself, or what it refers to."""
    said = mapping(schema)
    for _ in range(_MAX_DEPTH):
        if not isinstance(reference := said.get("$ref"), str):
            break
        said = mapping(_target(reference, root))
    return said


def argument_types(schema: Schema, key: str) -> Types:
    """The types of the argument `key` of a tool."""
    properties = mapping(schema.get("properties"))
    return types_of(properties.get(key, schema.get("additionalProperties")), schema)


def is_text(types: Types) -> bool:
    """A value of these types is a string whatever it looks like."""
    return types == _STRING


def escaped(text: str) -> str:
    """Text as it stands in a JSON string; pieces can be escaped one by one."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def as_json(text: str, types: Types) -> str:
    """The JSON text of a whole value that a model wrote as `text`."""
    if is_text(types):
        return json.dumps(text, ensure_ascii=False)
    bare = text.strip()
    found = _literal(bare) if types == ANY else _typed(bare, types)
    return json.dumps(text, ensure_ascii=False) if found is None else found


def _types(schema: object, root: Schema, depth: int) -> Types:
    said = mapping(schema)
    if not said or not depth:
        return ANY
    if isinstance(reference := said.get("$ref"), str):
        return _types(_target(reference, root), root, depth - 1)
    found: set[str] = set()
    kind = said.get("type")
    for name in [kind] if isinstance(kind, str) else items(kind):
        known = _NAMES.get(str(name).lower(), str(name).lower())
        if known not in _KNOWN:
            return ANY
        found.add(known)
    if not found:
        found.update(_of_values(said))
    if not found:
        found.update(_of_choices(said, root, depth))
    if found and said.get("nullable") is True:
        found.add("null")
    return frozenset(found)


def _of_values(schema: Schema) -> Iterable[str]:
    values = [schema["const"]] if "const" in schema else items(schema.get("enum"))
    return [name for value in values if (name := _VALUE_TYPES.get(type(value)))]


def _of_choices(schema: Schema, root: Schema, depth: int) -> Types:
    for name in ("anyOf", "oneOf"):
        choices = [_types(one, root, depth - 1) for one in items(schema.get(name))]
        if choices:
            return ANY.union(*choices) if all(choices) else ANY
    parts = [_types(one, root, depth - 1) for one in items(schema.get("allOf"))]
    return next((part for part in parts if part), ANY)


def _target(reference: str, root: Schema) -> object:
    place: object = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        place = mapping(place).get(name.replace("~1", "/").replace("~0", "~"))
    return place


def _typed(bare: str, types: Types) -> str | None:
    """JSON of one of the types; None: only a string can hold it."""
    if bare in _NOTHING and "null" in types:
        return "null"
    if bare in _LITERALS and "boolean" in types:
        return _LITERALS[bare]
    if "integer" in types and (whole := _WHOLE.fullmatch(bare)):
        return whole[1]
    if {"integer", "number"} & types and _NUMBER.fullmatch(bare):
        return bare
    if bare[:1] in ("{", "[") and {"object", "array"} & types:
        found = _literal(bare) or _python(bare)
        if found and {"{": "object", "[": "array"}[found[0]] in types:
            return found
    # Of another type than it should be: as JSON shows it, since a string would hide the fault.
    return None if "string" in types or bare[:1] == '"' else _literal(bare)


def _literal(bare: str) -> str | None:
    """The text itself if it is JSON other than a string."""
    if bare[:1] == '"' or not bare:
        return None
    try:
        json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return bare


def _python(bare: str) -> str | None:
    """JSON of a list or dict as Python, or loose JSON, writes it."""
    try:
        return json.dumps(json.loads(bare, strict=False, parse_constant=_refuse))
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings(action="ignore"):
            return json.dumps(ast.literal_eval(bare), allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
