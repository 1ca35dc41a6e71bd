"""What a request asks for besides its answer, in headers that all dialects share.

Knows nothing about bodies: its class, and where its blocks may be stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from omlx.cache.policy import StorePolicy
from omlx.engine.request import RequestClass
from omlx.server.errors import ApiError

STORE_HEADER = "X-Omlx-Cache-Store"
CLASS_HEADER = "X-Omlx-Class"
_MAX_SHOWN = 40
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Handling:
    """What the headers say; None where they leave it to the body or the settings."""

    store: StorePolicy | None = None
    request_class: RequestClass | None = None

    def class_of(self, in_body: RequestClass | None, setting: str) -> RequestClass:
        """How urgent the request is: by its header, else its body, else the settings."""
        return self.request_class or in_body or RequestClass(setting)

    def policy(self, setting: str, request_class: RequestClass) -> StorePolicy:
        """Where the blocks go; what a program computes for itself must not wear the disk."""
        if self.store is not None:
            return self.store
        default = StorePolicy(setting)
        is_batch = request_class is RequestClass.BATCH
        return StorePolicy.MEMORY if is_batch and default is StorePolicy.ALL else default


def handling(headers: Mapping[str, str]) -> Handling:
    """What a request's headers ask for; ApiError 400 names the header that is wrong."""
    return Handling(
        _choice(headers, STORE_HEADER, StorePolicy),
        _choice(headers, CLASS_HEADER, RequestClass),
    )


def _choice(headers: Mapping[str, str], name: str, choices: type[E]) -> E | None:
    text = headers.get(name.lower(), "").strip()
    if not text:
        return None
    try:
        return choices(text.lower())
    except ValueError:
        known = ", ".join(str(choice.value) for choice in choices)
        message = f"Must be one of {known}, not {text[:_MAX_SHOWN]!r} - at `{name}`"
        raise ApiError(400, message, param=name) from None
