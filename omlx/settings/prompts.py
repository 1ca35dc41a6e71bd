"""The settings of what happens to prompts before a model sees them, and of what clients are told.

Knows nothing about files, variables or the command line, as `schema`, of which it is a part.
"""

from dataclasses import dataclass
from typing import Annotated

from omlx.settings.option import Option, Unit


@dataclass(frozen=True, slots=True)
class Prompt:
    """How prompts get a stable form, so that what is the same for the model is so for the cache."""

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
