"""The figures of a server at one moment, as status and metrics show them.

Knows nothing about who counts or shows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import EngineSnapshot, EngineState


@dataclass(frozen=True, slots=True)
class EngineView:
    """What one engine says of itself at one moment."""

    model_id: str
    state: EngineState
    snapshot: EngineSnapshot
    health: EngineHealth = EngineHealth()


@dataclass(frozen=True, slots=True)
class TokenTotals:
    """Tokens of requests that are over, each in one place: prompt tokens by where they came from.

    `computed` are those that were in no tier and were computed; a prompt that was given up before
    its end counts as far as it came.
    """

    turns: int = 0
    prompt: int = 0
    cached_memory: int = 0
    cached_disk: int = 0
    computed: int = 0
    generated: int = 0

    def __add__(self, other: "TokenTotals") -> "TokenTotals":
        return TokenTotals(
            self.turns + other.turns,
            self.prompt + other.prompt,
            self.cached_memory + other.cached_memory,
            self.cached_disk + other.cached_disk,
            self.computed + other.computed,
            self.generated + other.generated,
        )

    def by_kind(self) -> dict[str, int]:
        """The tokens by the word that metrics have for each kind."""
        return {
            "cached_memory": self.cached_memory,
            "cached_disk": self.cached_disk,
            "computed": self.computed,
            "generated": self.generated,
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of all requests so far; times in seconds, of the last thousand or so.

    `tokens` are those of requests that are over, by the id of their model.
    """

    active: int
    waiting: int
    finished: int
    failed: int
    aborted: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    turns: int
    prompt_tokens: int
    cached_tokens: int
    tokens: Mapping[str, TokenTotals] = field(default_factory=dict[str, TokenTotals])
