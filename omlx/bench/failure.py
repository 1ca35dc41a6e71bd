"""What goes wrong with a request or a server that is measured.

Knows nothing about who shows it.
"""

from enum import StrEnum

from omlx.errors import OmlxError


class BenchError(OmlxError):
    """A bench that can't go on: one sentence and, where there is one, the fix."""


class Fault(StrEnum):
    """How a request went wrong."""

    REFUSED = "no connection"
    STATUS = "an error for an answer"
    EVENT = "an error within the stream"
    EARLY = "the stream ended early"
    SILENCE = "nothing came for too long"
    LATE = "it did not end in time"
    GARBAGE = "the answer can't be read"
    EMPTY = "the answer has no content"


class RequestError(BenchError):
    """A request without a whole answer; `status` is that of HTTP where there was one."""

    def __init__(
        self, fault: Fault, message: str, *, status: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.fault = fault
        self.status = status
