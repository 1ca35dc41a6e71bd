"""The settings of what happens to prompts before a model sees them, and of what clients are told.

Knows nothing about files, variables or the command line, as `schema`, of which it is a part.
"""

from dataclasses import dataclass
from typing import Annotated

from omlx.settings.engines import Auto
from omlx.settings.option import Option, Unit


@dataclass(frozen=True, slots=True)
class Prompt:
    """How prompts get a stable form, so that what is the same for the model is so for the cache."""

    drop_attribution: Annotated[
        bool,
        Option(
            "Leave out the line x-anthropic-billing-header at the start of a system text, which "
            "changes with every conversation.",
            per_model=True,
        ),
    ] = True
    drop_countdown: Annotated[
        bool,
        Option(
            "Leave out lines of system texts that only say how many tokens are left.",
            per_model=True,
        ),
    ] = True
    system_first: Annotated[
        bool,
        Option(
            "Tell the system messages of the first turn before what the user says in it.",
            per_model=True,
        ),
    ] = True
    session_last: Annotated[
        bool,
        Option(
            "Tell of a session's own folder after system and tools, not in the middle of them.",
            per_model=True,
        ),
    ] = True
    tool_order: Annotated[
        bool,
        Option(
            "Show tools, and the keys in them, in the order in which the same ones first came.",
            per_model=True,
        ),
    ] = True
    ledger: Annotated[
        bool,
        Option(
            "Keep the tokens that answers were made of, and use them where an answer comes back "
            "in a later prompt.",
        ),
    ] = True
    ledger_max_size: Annotated[
        int,
        Option(
            "Most bytes of tokens that are kept of answers; the oldest go first.",
            unit=Unit.SIZE,
            low=100_000,
        ),
    ] = 100_000_000
    idle_rerender: Annotated[
        bool | Auto,
        Option(
            "While a client runs tools, and nothing else runs, compute what its next prompt will "
            "begin with, where the template prints the answer in other words; auto does with "
            "mains power.",
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Agent:
    """What agents are told that can't be told everything."""

    scale_tokens: Annotated[
        int | Auto | None,
        Option(
            "Count tokens for clients as if the model's window had so many; auto is 200000. "
            "None tells them the real numbers.",
            low=1024,
            high=10**9,
            per_model=True,
        ),
    ] = None
