"""The requests that run (GET /admin/api/requests) as values, whatever they lack.

Knows nothing about how they are shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from omlx.cli.view.plain import int_of, maps_of, number_of, text_of


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """One request; `to_prefill` is None while it waits, the speed is that of its state."""

    id: str
    model: str
    state: str
    dialect: str
    client: str
    age_s: float
    prompt_tokens: int
    cached_tokens: int
    prefilled: int
    to_prefill: int | None
    generated: int
    ttft_s: float | None
    tokens_per_s: float | None


def read_running(answer: Mapping[str, object]) -> tuple[RunningRequest, ...]:
    """The requests in an answer, the oldest first as there."""
    return tuple(map(_running, maps_of(answer, "requests")))


def _running(item: Mapping[str, object]) -> RunningRequest:
    to_prefill = number_of(item, "to_prefill_tokens")
    return RunningRequest(
        id=text_of(item, "id"),
        model=text_of(item, "model"),
        state=text_of(item, "state"),
        dialect=text_of(item, "dialect"),
        client=text_of(item, "client"),
        age_s=number_of(item, "age_s") or 0.0,
        prompt_tokens=int_of(item, "prompt_tokens"),
        cached_tokens=int_of(item, "cached_tokens"),
        prefilled=int_of(item, "prefilled_tokens"),
        to_prefill=None if to_prefill is None else int(to_prefill),
        generated=int_of(item, "generated_tokens"),
        ttft_s=number_of(item, "ttft_s"),
        tokens_per_s=number_of(item, "tokens_per_s"),
    )
