"""Chooses how a model's answers are split, from the source of its chat template.

Knows nothing about rendering; looks for marks that only one format has.
"""

import logging
import re
from collections.abc import Callable, Iterable

from omlx.errors import ModelError
from omlx.server.parse.formats import GENERIC, call_formats
from omlx.server.parse.reasoning import REASONING, ReasoningMarks
from omlx.server.parse.said import CallFormat
from omlx.server.parse.speech import SpeechForm

_LOG = logging.getLogger("omlx.server.parse")

# In order: the name of a format, and what a template holds if it has calls in that format.
_CALL_CLUES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("gemma", ("<|tool_call>", "<tool_call|>")),
    ("function_gemma", ("<start_function_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("muse_spark", ("<atem:function_calls>",)),
    ("glm4", ("<arg_key>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("minicpm", ('<function name="', '<param name="')),
    ("qwen3_coder", ("<function=",)),
    ("deepseek_r1", ("<｜tool▁sep｜>", "```json", "</think>")),
    ("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁sep｜>",)),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_json", ("[TOOL_CALLS]",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("pythonic", ("<|tool_list_start|>",)),
    ("llama4_pythonic", ("[func_name1(",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('{"name": function name, "parameters":',)),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
)
# Tokens that tell the format where the template is silent.
_TOKEN_CLUES = (("pythonic", "<|tool_call_start|>"),)
_REASONING_CLUES = (
    ("seed", "<seed:think>"),
    ("longcat", "<longcat_think>"),
    ("think_pipes", "<|think:start|>"),
    ("cohere", "<|START_THINKING|>"),
    ("mistral", "[THINK]"),
    ("gemma", "<|channel>"),
    ("xtml", "<|open|>think<|sep|>"),
    ("granite", "Here is my thought process:"),
    ("thinking", "<thinking>"),
    ("think", "<think>"),
    ("think", "</think>"),
)
_TOOLS = re.compile(r"\b(tools|tool_calls)\b")


def choose_form(
    template: str | None,
    has_token: Callable[[str], bool],
    *,
    tools: str = "auto",
    reasoning: str = "auto",
) -> SpeechForm:
    """The form of a model's answers; the names of a format override it, "none" turns it off.

    Logs a warning if the template has tools and no format is known. ModelError for a name that
    is not known.
    """
    formats = call_formats()
    marks = {entry.name: entry for entry in REASONING}
    _refuse_unknown(tools, formats, kind="tool call format")
    _refuse_unknown(reasoning, marks, kind="reasoning format")
    calls = formats.get(tools)
    if tools == "auto":
        calls = _find_calls(template or "", has_token, formats)
    elif calls is not None:
        _warn_of_mismatch(template or "", calls)
    thinks = marks.get(reasoning)
    if reasoning == "auto":
        thinks = _find_reasoning(template or "", has_token, marks)
        if calls is not None and calls.name == "harmony":
            thinks = None  # its parser tells reasoning itself
    return SpeechForm(reasoning=thinks, calls=calls)


def _clued(template: str) -> str:
    """The name of the format that a template writes calls in, "" if it is not known."""
    found = (name for name, clues in _CALL_CLUES if all(clue in template for clue in clues))
    return next(found, "")


def _warn_of_mismatch(template: str, calls: CallFormat) -> None:
    clued = _clued(template)
    if clued and clued != calls.name:
        _LOG.warning(
            "the settings say that calls are in the format %s; the chat template has them in %s",
            calls.name, clued,
        )  # fmt: skip


def _find_calls(
    template: str, has_token: Callable[[str], bool], formats: dict[str, CallFormat]
) -> CallFormat | None:
    name = _clued(template)
    if name in formats:
        return formats[name]
    if not _TOOLS.search(template):
        return None
    for name, token in _TOKEN_CLUES:
        if has_token(token):
            return formats[name]
    _LOG.warning(
        "the chat template has tools, and writes calls in no format that is known: calls may "
        "stay in the text. hint: name the format in the model's settings, one of %s",
        ", ".join(sorted(formats)),
    )
    return formats[GENERIC]


def _find_reasoning(
    template: str, has_token: Callable[[str], bool], marks: dict[str, ReasoningMarks]
) -> ReasoningMarks | None:
    for name, clue in _REASONING_CLUES:
        if clue in template:
            return marks[name]
    for entry in REASONING:
        if not entry.is_always and all(map(has_token, (*entry.opens, *entry.closes))):
            return entry
    return None


def _refuse_unknown(name: str, known: Iterable[str], *, kind: str) -> None:
    names = ["auto", "none", *sorted(known)]
    if name not in names:
        raise ModelError(f'there is no {kind} "{name}"', hint=f"the known ones: {', '.join(names)}")
