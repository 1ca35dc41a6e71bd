"""Token counts as a client has to be told them that believes in a window of another size.

Knows nothing about requests. Whatever is counted for the user stays as it is.
"""

from dataclasses import dataclass

from omlx.server.generation import Usage
from omlx.settings.prompts import Agent

# What the clients of the Anthropic API take the window of a model to be that they don't know.
_AUTO = 200_000


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts `target` tokens for `window`, which are the same where counts are real."""

    target: int = 1
    window: int = 1

    def tokens(self, num_tokens: int) -> int:
        """So many tokens for the client, rounded up: what is too long for the window stays so."""
        return -(-num_tokens * self.target // self.window)

    def usage(self, usage: Usage) -> Usage:
        """The counts of a request; the order of sizes stays, so that differences are no debts."""
        return Usage(
            self.tokens(usage.prompt),
            self.tokens(usage.cached),
            self.tokens(usage.completion),
            self.tokens(usage.reasoning),
        )


REAL = Scale()


def scale_of(agent: Agent, window: int | None) -> Scale:
    """How tokens are counted for the clients of a model with such a window."""
    if agent.scale_tokens is None or not window:
        return REAL
    return Scale(_AUTO if agent.scale_tokens == "auto" else agent.scale_tokens, window)
