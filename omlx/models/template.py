"""Renders a model's chat template: messages in, the prompt's text out.

Knows nothing about tokens or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from omlx.errors import ModelError
from omlx.models.messages import Arguments, Message, forms, shape

# What a template can raise: it is a program written by others.
_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
_MARKS = ("omlx-probe-a", "omlx-probe-b")


class TemplateError(ModelError):
    """Messages that the model's chat template refuses, or a template that can't be used."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What a template was seen to do with probes."""

    # Text between two text parts of one message, where they have to be joined; None: wants parts.
    joint: str | None
    arguments: Arguments


class ChatTemplate:
    """The templates of one model, compiled when first used; any thread may render."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        special: Mapping[str, str],
        today: Callable[[], date] = date.today,
    ) -> None:
        self._sources = sources
        self._special = special
        self._environment = _environment(today)
        self._compiled: dict[str, tuple[jinja2.Template, Habits]] = {}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None,
        add_generation_prompt: bool,
        extra: Mapping[str, object],
    ) -> str:
        """The prompt's text; TemplateError says why these messages have none."""
        if not messages:
            raise TemplateError("There are no messages to render")
        template, habits = self._template("tool_use" if tools else "default")
        values = {
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special,
            **extra,
        }
        failure: Exception | None = None
        for form in forms(messages, habits.arguments):
            shaped = shape(messages, form, joint=habits.joint)
            try:
                return template.render({**values, "messages": shaped})
            except _FAILURES as error:
                failure = failure or error
        raise TemplateError(_refusal(failure))

    @property
    def source(self) -> str:
        """The template's own text, of the one for tools if there are several."""
        names = ("tool_use", "default", *self._sources)
        return next((self._sources[name] for name in names if name in self._sources), "")

    def check(self) -> None:
        """Compile every template; TemplateError names the one that can't be."""
        for name in self._sources:
            self._compile(name)

    def _template(self, name: str) -> tuple[jinja2.Template, Habits]:
        known = [n for n in (name, "default", *self._sources) if n in self._sources]
        if not known or (known[0] not in (name, "default") and len(self._sources) > 1):
            names = ", ".join(sorted(self._sources))
            raise TemplateError(f"The model has no default chat template, only: {names}")
        if known[0] not in self._compiled:
            template = self._compile(known[0])
            self._compiled[known[0]] = (template, _habits(template, self._special))
        return self._compiled[known[0]]

    def _compile(self, name: str) -> jinja2.Template:
        try:
            return self._environment.from_string(self._sources[name])
        except jinja2.TemplateSyntaxError as error:
            place = f"line {error.lineno}: {error.message}"
            raise TemplateError(f"The chat template {name!r} is broken, {place}") from None
        except _FAILURES as error:
            raise TemplateError(f"The chat template {name!r} is broken: {error}") from None


def _refusal(failure: Exception | None) -> str:
    text = str(failure).strip() or type(failure).__name__
    return f"The chat template refused the messages: {text}"


def _habits(template: jinja2.Template, special: Mapping[str, str]) -> Habits:
    def probe(*messages: Message) -> str:
        values = {"tools": None, "documents": None, "add_generation_prompt": False, **special}
        try:
            return template.render({**values, "messages": list(messages)})
        except _FAILURES:
            return ""

    first, second = _MARKS
    as_text = probe({"role": "user", "content": first})
    parts = [{"type": "text", "text": mark} for mark in _MARKS]
    as_parts = probe({"role": "user", "content": parts})
    joint: str | None = "\n"
    if first in as_parts and second in as_parts and "'type'" not in as_parts:
        joint = as_parts.partition(first)[2].partition(second)[0] if first in as_text else None
    return Habits(joint=joint, arguments=_arguments_habit(probe))


def _arguments_habit(probe: Callable[..., str]) -> Arguments:
    key, value = _MARKS
    function = {"name": "probe", "arguments": {key: value}}
    call = {"id": "call_probe", "type": "function", "function": function}
    shown = probe(
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    )
    # A mapping printed as Python writes it means that the template wants the JSON text.
    is_text = not shown or f"'{key}'" in shown
    return Arguments.TEXT if is_text else Arguments.MAPPING


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: marks the assistant's part; renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the tag and its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _Namespace(Namespace):
    """Jinja's namespace without underscore names, which could pass for an object's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: B902
        self, *rest = args
        values: dict[str, Any] = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}")


def _environment(today: Callable[[], date]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )

    def strftime_now(form: str) -> str:
        # Midnight: a prompt that changes within the day would never be found in the cache.
        return datetime.combine(today(), time.min).strftime(form)

    # Jinja's annotations allow only its own filters and globals.
    filters = cast(dict[str, Any], environment.filters)
    filters.update(tojson=_tojson, random=_first)
    names = cast(dict[str, Any], environment.globals)
    names.pop("lipsum")
    names.update(
        raise_exception=_raise_exception,
        strftime_now=strftime_now,
        namespace=_Namespace,
        dict=_dict,
    )
    return environment


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _first(values: Sequence[object]) -> object:
    """Jinja's random filter, made repeatable: a random prompt is never found in the cache."""
    return values[0]


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the templates' authors saw it: not escaped for HTML, keys in their own order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
