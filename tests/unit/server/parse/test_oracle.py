"""mlx-lm's parsers of whole calls find the same calls."""

import importlib
from typing import Any

import pytest

from omlx.server.parse.elements import element_formats
from tests.unit.server.parse.samples_xml import CALLS, TOOLS, WRITERS, parts

FORMATS = {form.name: form for form in element_formats()}
ORACLES = {
    "qwen3_coder": "qwen3_coder",
    "glm4": "glm47",
    "glm47": "glm47",
    "longcat": "longcat",
    "minimax_m2": "minimax_m2",
    "muse_spark": "muse_spark",
    "minicpm": "minicpm5",
    "kimi_k2": "kimi_k2",
    "gemma": "gemma4",
    "function_gemma": "function_gemma",
}
# What an oracle does not do: it strips strings, ignores schemas, or does not know nested values.
STRIPS = {"lines", "empty string"}
LIKE_NUMBERS = {"string like a number", "string like JSON"}
KNOWN = {
    "qwen3_coder": {"string like JSON", "types"},
    "glm4": STRIPS,
    "glm47": STRIPS,
    "longcat": STRIPS,
    "minimax_m2": STRIPS | {"string like JSON"},
    "minicpm": STRIPS | {"string like JSON"},
    "muse_spark": STRIPS | LIKE_NUMBERS | {"three"},
    "function_gemma": {"object", "array", "types", "string like JSON"},
}


@pytest.mark.parametrize("name", ORACLES)
def test_the_same_calls(name: str) -> None:
    oracle: Any = importlib.import_module(f"mlx_lm.tool_parsers.{ORACLES[name]}")
    num_same = 0
    for sample, calls in CALLS.items():
        if sample in KNOWN.get(name, set()):
            continue
        for call in calls:
            if not call[1] and ORACLES[name] in ("glm47", "longcat"):
                continue
            text = WRITERS[name]([call])
            inner = text.removeprefix(oracle.tool_call_start).removesuffix(oracle.tool_call_end)
            found = oracle.parse_tool_call(inner, TOOLS)
            found = found[0] if isinstance(found, list) else found
            parser = FORMATS[name].parser(TOOLS)
            said = parts([*parser.add(text), *parser.finish(is_cut=False)])
            assert said == [call] == [(found["name"], found["arguments"])], (sample, found)
            num_same += 1
    assert num_same >= 8
