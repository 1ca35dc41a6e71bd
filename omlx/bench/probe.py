"""Requests of the kind that coding agents send, small: system text, tools, a question.

Knows nothing about servers or tokenizers; sizes are near, not exact.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Tool = Mapping[str, object]
Message = Mapping[str, str]

_NUM_TOOLS = 5
_NAMES = ("read_file", "search_text", "run_tests", "write_file", "list_folder")
# Tokens of a tool beside its description, in most templates.
_TOOL_TOKENS = 50
_SYSTEM_SHARE = 0.48
_LEAST_TOKENS = 600
_TEXT = (
    "a able about add after again all also always and any answer ask at back be before begin both "
    "but by call can change check clear come correct do each edit end every file find first fix "
    "folder follow for from give go good have help how if in into is it keep know last learn leave "
    "line list look make many may more most name need new next no not note now of on once one only "
    "or order other out over own part place plan point put read result right run same say see send "
    "set short show since small some start state step stop such take tell test text than that the "
    "then there these they thing this time to tool two up use user very want way what when where "
    "which while who why will with word work write you"
)


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt that can be asked again as it is, or with its tools in another order."""

    system: str
    tools: tuple[Tool, ...]
    question: str

    @property
    def messages(self) -> list[Message]:
        """The messages of a chat body."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.question},
        ]


def tool_probe(num_tokens: int, *, seed: str) -> Probe:
    """A request with tools of about so many tokens (at least 600), half of them the system's."""
    num_tokens = max(num_tokens, _LEAST_TOKENS)
    rng = random.Random(f"omlx verify {seed} tools")
    num_system = round(num_tokens * _SYSTEM_SHARE)
    num_each = max(4, (num_tokens - num_system) // _NUM_TOOLS - _TOOL_TOKENS)
    tools = tuple(_tool(name, _text(rng, num_each)) for name in _NAMES)
    return Probe(_text(rng, num_system), tools, f"Which tool comes first? {_text(rng, 8)}")


def shared_probes(number: int, num_tokens: int, *, seed: str) -> list[Probe]:
    """Requests without tools that begin with the same system text and ask different things."""
    rng = random.Random(f"omlx verify {seed} shared")
    system = _text(rng, max(num_tokens, _LEAST_TOKENS))
    return [Probe(system, (), f"Question {idx + 1}: {_text(rng, 8)}?") for idx in range(number)]


def _text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(_TEXT.split(), k=num_words))


def _tool(name: str, description: str) -> Tool:
    path = {"type": "string", "description": "Where"}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"path": path}, "required": ["path"]},
        },
    }


def reordered(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The same tools, the last one first."""
    return tuple(reversed(tools))
