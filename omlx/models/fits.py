"""What fits into a machine's memory, from sizes alone: nothing is loaded to find out.

Knows nothing about settings or engines.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omlx.models.locate import ModelEntry
from omlx.units import format_size

DEFAULT_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model needs with some tokens of context, against what there is.

    `max_context` is how many tokens of one request fit beside the weights; None where its
    configuration doesn't say what a token takes.
    """

    context: int
    needed_bytes: int
    ceiling_bytes: int
    max_context: int | None

    @property
    def is_fitting(self) -> bool:
        """Whether it can be served so."""
        return self.needed_bytes <= self.ceiling_bytes


def fit(entry: ModelEntry, ceiling_bytes: int, *, context: int = DEFAULT_CONTEXT) -> Fit:
    """Whether a model fits with so many tokens, or with its whole window if that is less."""
    window = entry.context_window
    tokens = min(context, window) if window else context
    room = ceiling_bytes - entry.weight_bytes
    most = None
    if entry.state is not None:
        most = entry.state.tokens_in(room)
        if window is not None:
            most = window if most is None else min(most, window)
    return Fit(tokens, entry.needed_bytes(tokens), ceiling_bytes, most)


def why_too_large(entry: ModelEntry, ceiling_bytes: int | None) -> str | None:
    """A sentence with the numbers, if the weights of a model can never be in memory."""
    if ceiling_bytes is None or entry.weight_bytes <= ceiling_bytes:
        return None
    return (
        f"the model {entry.id!r} has {format_size(entry.weight_bytes)} of weights "
        f"({entry.weight_bytes:,} bytes), and engine.memory_limit allows "
        f"{format_size(ceiling_bytes)} ({ceiling_bytes:,} bytes) on this machine"
    )


def split(
    entries: Iterable[ModelEntry], ceiling_bytes: int | None
) -> tuple[list[ModelEntry], dict[str, str]]:
    """The models that can be loaded; and of the others, by id, why not."""
    fitting: list[ModelEntry] = []
    refused: dict[str, str] = {}
    for entry in entries:
        reason = why_too_large(entry, ceiling_bytes)
        if reason is None:
            fitting.append(entry)
        else:
            refused[entry.id] = reason
    return fitting, refused
