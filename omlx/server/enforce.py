"""The grammar that an answer must follow: the form that was asked for, calls that are required.

Knows nothing about how a grammar is kept to. What the model thinks first is always free.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from omlx.engine import constrain
from omlx.engine.request import Grammar
from omlx.server.context import Message, ModelText
from omlx.server.errors import ApiError
from omlx.server.generation import Choice, Form, FormKind, Generation
from omlx.server.parse.grammar import literal, mark, numbered
from omlx.server.parse.reasoning import ReasoningMarks
from omlx.server.parse.speech import SpeechForm

_ANY = "/(?s:.*)/"


def grammar_of(
    generation: Generation,
    text: ModelText,
    form: SpeechForm,
    *,
    is_thinking: bool,
) -> Grammar | None:
    """The grammar of an answer, None where it is free; ApiError 400 says why one can't be had.

    `form` is the model's own, and `is_thinking` where the prompt has opened a block of reasoning.
    """
    marks = _Marks(text)
    tools = _callable(generation)
    must_call = generation.tool_choice.kind is Choice.REQUIRED
    if not must_call and generation.form is None:
        return None
    parts: dict[str, dict[str, object]] = {}
    if tools and form.calls is not None and generation.tool_choice.kind is not Choice.NONE:
        is_parallel = generation.tool_choice.is_parallel
        calls = form.calls.grammar(tools, is_parallel=is_parallel, is_special=marks.is_special)
        parts["calls"] = {"lark_grammar": numbered(calls, text.token_id)}
    elif must_call:
        raise ApiError(
            400,
            "How this model writes calls is not known, so that none can be required",
            param="$.tool_choice",
        )
    if generation.form is not None and not must_call:
        parts["answer"] = _answer(generation.form)
    param = generation.form.param if generation.form and not must_call else "$.tools"
    opening = _opening(generation, form, marks, is_thinking=is_thinking)
    after = form.reasoning.closes[0] if is_thinking and form.reasoning else ""
    return _checked(_joined(parts, opening, form, marks), after, param)


def _checked(grammar: str, after: str, param: str) -> Grammar:
    made = Grammar(grammar, after)
    reason = constrain.check(replace(made, after=""))
    if reason is not None:
        message = f"No grammar can be made of this: {reason[:400]} - at `{param}`"
        raise ApiError(400, message, param=param)
    return made


def _callable(generation: Generation) -> Sequence[Message]:
    tools = [*generation.tools, *generation.later_tools]
    name = generation.tool_choice.name
    return [tool for tool in tools if name in (None, _name(tool))]


def _name(tool: Message) -> object:
    return cast(Mapping[str, object], tool.get("function") or {}).get("name")


def _answer(form: Form) -> dict[str, object]:
    """The part of a grammar that is the answer itself."""
    try:
        match form.kind:
            case FormKind.SCHEMA:
                made = constrain.json_schema(cast(dict[str, object], form.value))
            case FormKind.OBJECT:
                made = constrain.json_object()
            case FormKind.REGEX:
                made = constrain.regex(str(form.value))
            case FormKind.CHOICE:
                made = constrain.choice(cast(list[str], form.value))
            case FormKind.LARK:
                made = constrain.lark(str(form.value))
    except (ValueError, RecursionError) as error:
        message = f"No grammar can be made of this: {str(error)[:400]} - at `{form.param}`"
        raise ApiError(400, message, param=form.param) from None
    if not made.text.startswith("{"):
        return {"lark_grammar": made.text}
    [grammar] = json.loads(made.text)["grammars"]
    return grammar


class _Marks:
    """The marks of one model: which of them are special tokens."""

    def __init__(self, text: ModelText) -> None:
        self._text = text

    def is_special(self, text: str) -> bool:
        """Whether a mark is a token that no text can spell."""
        return self._text.is_special(text)

    def write(self, text: str) -> str:
        """A mark as a grammar has it."""
        return numbered(mark(text, self.is_special), self._text.token_id)


def _opening(generation: Generation, form: SpeechForm, marks: _Marks, *, is_thinking: bool) -> str:
    """A rule for a block of reasoning that the model may open by itself; empty if it can't."""
    if form.calls is not None and form.calls.name == "harmony":
        block = [marks.write("<|channel|>"), literal("analysis"), marks.write("<|message|>"), _ANY]
        block += [marks.write("<|end|>"), marks.write("<|start|>"), literal("assistant")]
        return " ".join(block)
    if is_thinking or form.reasoning is None or generation.thinking.is_on is False:
        return ""
    return _block(form.reasoning, marks)


def _block(reasoning: ReasoningMarks, marks: _Marks) -> str:
    opens, closes = reasoning.opens[0], reasoning.closes[0]
    if marks.is_special(closes):
        return f"{marks.write(opens)} {_ANY} {marks.write(closes)} /\\s*/"
    return f"{marks.write(opens)} thoughts /\\s*/"


def _joined(
    parts: Mapping[str, Mapping[str, object]], opening: str, form: SpeechForm, marks: _Marks
) -> str:
    """One grammar whose start is any of the parts, after what may come before them."""
    written = {name: f"@{name}" for name in parts}
    if "answer" in parts and form.calls is not None and form.calls.name == "harmony":
        head = [marks.write("<|channel|>"), literal("final"), marks.write("<|message|>")]
        written["answer"] = " ".join([*head, "@answer"])
    body = " | ".join(f"({one})" for one in written.values())
    rules = [f"start: opening? body\nopening: {opening}" if opening else "start: body"]
    rules.append(f"body: {body}")
    if "thoughts" in opening and form.reasoning is not None:
        closes = _escaped(form.reasoning.closes[0])
        rules.append(f"thoughts[lazy]: /(?s:.*){closes}/")
    grammars = [{"lark_grammar": "\n".join(rules)}]
    grammars += [{**part, "name": name} for name, part in parts.items()]
    return json.dumps({"grammars": grammars})


def _escaped(text: str) -> str:
    return "".join(
        f"\\{c}" if not c.isalnum() and c.isascii() and c not in "<> _'\"" else c for c in text
    )
