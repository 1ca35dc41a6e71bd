import json

import pytest

from omlx.server.errors import (
    ApiError,
    Flavor,
    busy,
    error_bytes,
    flavor_of,
    overflow,
    unavailable,
    unknown_model,
)
from tests.unit.server import strict

TYPES = [
    (400, "invalid_request_error", "invalid_request_error"),
    (401, "invalid_request_error", "authentication_error"),
    (403, "permission_error", "permission_error"),
    (404, "invalid_request_error", "not_found_error"),
    (405, "invalid_request_error", "invalid_request_error"),
    (408, "timeout_error", "timeout_error"),
    (413, "invalid_request_error", "request_too_large"),
    (415, "invalid_request_error", "invalid_request_error"),
    (429, "rate_limit_error", "overloaded_error"),
    (500, "server_error", "api_error"),
    (503, "server_error", "overloaded_error"),
]


@pytest.mark.parametrize(("status", "openai", "anthropic"), TYPES)
def test_types_of_both_dialects(status, openai, anthropic):
    """A12"""
    error = ApiError(status, "what", param="$.a", code=None)
    shape = json.loads(error_bytes(error, Flavor.OPENAI, "id"))
    assert set(shape) == {"error"}
    assert set(shape["error"]) == {"message", "type", "param", "code"}
    assert (shape["error"]["type"], shape["error"]["param"]) == (openai, "$.a")
    body = error_bytes(error, Flavor.ANTHROPIC, "id")
    assert json.loads(body) == {
        "type": "error",
        "error": {"type": anthropic, "message": "what"},
        "request_id": "req_id",
    }
    if anthropic != "request_too_large":  # the API has it, its SDK's types don't
        strict.anthropic_error(body)


def test_overflow_has_the_wording_that_agents_compact_on():
    """A13"""
    error = overflow(1031, 1000)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert error.message == (
        "prompt is too long: 1031 tokens > 1000 maximum. Your input exceeds the context window "
        "of this model: its maximum context length is 1000 tokens. Please reduce the length of "
        "the messages."
    )


def test_passing_troubles_say_when_to_come_again():
    for error in (busy("x"), unavailable("x")):
        assert int(error.headers["retry-after"]) > 0


def test_a_model_name_is_not_quoted_at_length():
    assert len(unknown_model("x" * 10_000).message) < 400


def test_flavor_comes_from_the_path_and_on_shared_paths_from_the_version_header():
    assert flavor_of("/v1/messages", {}) is Flavor.ANTHROPIC
    assert flavor_of("/v1/messages/count_tokens", {}) is Flavor.ANTHROPIC
    assert flavor_of("/v1/models", {"anthropic-version": "2023-06-01"}) is Flavor.ANTHROPIC
    assert flavor_of("/v1/models", {}) is Flavor.OPENAI
