"""Errors as clients see them: a status and a body in the shape of the dialect that was spoken.

Knows nothing about what went wrong inside; it is told with an ApiError.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

import orjson

from omlx.errors import OmlxError


class Flavor(Enum):
    """The dialect in which an error is written."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class ApiError(OmlxError):
    """A request that is refused or fails; `param` is the field at fault, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class _Kind:
    openai_type: str
    openai_code: str | None
    anthropic_type: str
    level: int = logging.INFO


_RATE_LIMIT = "rate_limit_exceeded"
_INVALID = _Kind("invalid_request_error", None, "invalid_request_error")
_OVERLOADED = _Kind("server_error", "server_is_overloaded", "overloaded_error", logging.WARNING)
_INTERNAL = _Kind("server_error", "internal_error", "api_error", logging.ERROR)
_KINDS = {
    401: _Kind("invalid_request_error", "invalid_api_key", "authentication_error"),
    403: _Kind("permission_error", "forbidden", "permission_error"),
    404: _Kind("invalid_request_error", "not_found", "not_found_error"),
    408: _Kind("timeout_error", "timeout", "timeout_error"),
    413: _Kind("invalid_request_error", "request_too_large", "request_too_large"),
    429: _Kind("rate_limit_error", _RATE_LIMIT, "rate_limit_error"),
    503: _OVERLOADED,
    529: _OVERLOADED,
}


def _kind(status: int) -> _Kind:
    return _KINDS.get(status, _INVALID if status < 500 else _INTERNAL)


def bad_field(param: str, message: str) -> ApiError:
    """A 400 about one field, named by its path in the body."""
    return ApiError(400, f"{message} - at `{param}`", param=param)


def unsupported(param: str, what: str) -> ApiError:
    """A 400 for a field whose meaning this version does not have."""
    message = f"{what} is not supported by this version - at `{param}`"
    return ApiError(400, message, param=param, code="unsupported_parameter")


def unknown_model(name: str, why: str = "") -> ApiError:
    """A 404 for a model that is not served; `why` may say what was meant."""
    message = f"The model {name[:200]!r} does not exist; GET /v1/models lists those served"
    if why:
        message += f" ({why})"
    return ApiError(404, message, param="model", code="model_not_found")


def too_large(reason: str) -> ApiError:
    """A 400 for a model that this machine's memory can never hold."""
    message = reason[:1].upper() + reason[1:]
    return ApiError(400, message, param="model", code="model_too_large")


def overflow(num_tokens: int, window: int) -> ApiError:
    """A 400 in the one wording on which most agents compact their history."""
    message = (
        f"prompt is too long: {num_tokens} tokens > {window} maximum. Your input exceeds the "
        f"context window of this model: its maximum context length is {window} tokens. "
        "Please reduce the length of the messages."
    )
    return ApiError(400, message, param="messages", code="context_length_exceeded")


def busy(message: str) -> ApiError:
    """A 429 that asks to come again in a second."""
    return ApiError(429, message, headers={"retry-after": "1"})


def rate_limited(message: str, retry_after_s: int) -> ApiError:
    """A 429 for a key that has used what it may, in every dialect."""
    return ApiError(429, message, code=_RATE_LIMIT, headers={"retry-after": str(retry_after_s)})


def unavailable(message: str) -> ApiError:
    """A 503 that asks to come again in two seconds."""
    return ApiError(503, message, headers={"retry-after": "2"})


def in_use(model_id: str, num_requests: int) -> ApiError:
    """A 409 for a model that can't be unloaded now."""
    requests = f"{num_requests} request{'' if num_requests == 1 else 's'}"
    message = f"The model {model_id!r} has {requests}; it can be unloaded once they are over"
    return ApiError(409, message, code="model_in_use")


def internal() -> ApiError:
    """A 500 that says nothing of the inside; the log has the traceback."""
    return ApiError(500, "Internal error; the server's log has the details")


def flavor_of(path: str, headers: Mapping[str, str]) -> Flavor:
    """The dialect of a request: by its path, on shared paths by Anthropic's version header."""
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return Flavor.ANTHROPIC
    return Flavor.OPENAI


def status_of(error: ApiError, flavor: Flavor) -> int:
    """The status of an error in a dialect: Anthropic's clients know a full server as 529."""
    is_busy = error.status == HTTPStatus.TOO_MANY_REQUESTS and error.code != _RATE_LIMIT
    return 529 if is_busy and flavor is Flavor.ANTHROPIC else error.status


def log_level(error: ApiError) -> int:
    """How loud the log is about an error."""
    return _kind(error.status).level


def error_object(error: ApiError, flavor: Flavor, request_id: str) -> dict[str, object]:
    """The error in a dialect's shape, as a response body and as the data of a stream event."""
    kind = _kind(status_of(error, flavor))
    # It may quote a header, of which any byte is possible.
    message = error.message.encode("utf-8", "replace").decode()
    if flavor is Flavor.ANTHROPIC:
        return {
            "type": "error",
            "error": {"type": kind.anthropic_type, "message": message},
            "request_id": f"req_{request_id}",
        }
    return {
        "error": {
            "message": message,
            "type": kind.openai_type,
            "param": error.param,
            "code": error.code or kind.openai_code,
        }
    }


def error_bytes(error: ApiError, flavor: Flavor, request_id: str) -> bytes:
    """The error in a dialect's shape, encoded."""
    return orjson.dumps(error_object(error, flavor, request_id))


def from_status(status: int, message: str, headers: Mapping[str, str]) -> ApiError:
    """An error that the HTTP layer found, without anything of its wording that is an internal."""
    kept = {name: value for name, value in headers.items() if name.lower() == "allow"}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        kept["retry-after"] = "2"
    return ApiError(status, message or HTTPStatus(status).phrase, headers=kept)
