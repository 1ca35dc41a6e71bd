"""What a model says, in parts: the answer's text, its reasoning, its calls of tools.

Knows nothing about the markup that the parts were found in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Score:
    """A token of the answer as text and bytes, its log probability, and the most probable ones."""

    token: str
    raw: bytes
    logprob: float
    top: tuple["Score", ...] = ()


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer; `at` is where it begins in all that the model said, -1 is not known."""

    text: str
    at: int = -1
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """A call of the tool `name`; calls of one answer are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments; all of them together are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has all of its arguments; one that a limit cut off never ends."""

    index: int


Said = Text | Reasoning | CallBegan | CallArguments | CallEnded
# As templates get them: {"type": "function", "function": {"name", "description", "parameters"}}.
Tools = Sequence[Mapping[str, object]]


class Parser(Protocol):
    """Splits one answer."""

    def add(self, text: str) -> list[Said]:
        """Take more text, return what is certain (mutates)."""
        ...

    def finish(self, *, is_cut: bool) -> list[Said]:
        """Return what was held back, once the text has ended (mutates).

        `is_cut` says that a limit ended it: a call that is not complete stays so. Otherwise it is
        repaired, or becomes text where nothing of it has been said.
        """
        ...


class CallFormat(Protocol):
    """How a family of models writes calls."""

    @property
    def name(self) -> str:
        """By which settings name it."""
        ...

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text, since the format is made of them."""
        ...

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer, of the text outside of reasoning."""
        ...

    def grammar(
        self, tools: Tools, *, is_parallel: bool, is_special: Callable[[str], bool] = ...
    ) -> str:
        """A Lark grammar (llguidance's) whose `start` is one call or, if parallel, one or more.

        Marks that `is_special` knows stand as tokens, others as text; those that have no angle
        brackets have to be `numbered`.
        """
        ...
