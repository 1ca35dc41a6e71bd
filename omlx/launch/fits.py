"""Whether a model's window holds what a client sends first.

Knows nothing about servers or how a client is started.
"""

from collections.abc import Iterable
from enum import Enum

from omlx.launch.catalog import Client

_ANSWER = 500  # tokens that the first answer needs at the very least
_COMFORT = 2  # below so many times the first request, there is little left to work with


class Fit(Enum):
    """How a client's first request and a window go together."""

    WELL = "well"
    TIGHT = "tight"
    NOT = "not"


def fit(client: Client, window: int) -> Fit:
    """How the first request and a short answer fit."""
    if window < need(client):
        return Fit.NOT
    return Fit.WELL if window >= _COMFORT * client.first_request_tokens else Fit.TIGHT


def those_that_fit(clients: Iterable[Client], window: int) -> list[Client]:
    """The agents whose first request fits, the smallest first."""
    agents = [one for one in clients if one.is_agent and fit(one, window) is not Fit.NOT]
    return sorted(agents, key=lambda one: one.first_request_tokens)


def need(client: Client) -> int:
    """The smallest window that is of use to a client."""
    tokens = client.first_request_tokens
    return max(client.least_window, tokens + _ANSWER if tokens else 0)
