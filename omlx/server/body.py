"""Decodes a request body into the typed form of a dialect, and says well what is wrong with it.

Knows nothing about HTTP or about what the fields mean.
"""

import re
from typing import TypeVar, cast

import msgspec
import orjson

from omlx.server.errors import ApiError
from omlx.server.shape import check_shape

T = TypeVar("T")

_PLACE = re.compile(r" - at `(\$[^`]*)`$")
_MAX_MESSAGE = 500
# An escape of a string: a pair of surrogates, a lone one, or any other.
_ESCAPE = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as the decoder's type; ApiError 400 names the field, or the place in the text.

    Half an emoji, as clients leave it where they cut a text, becomes U+FFFD.
    """
    if not body.strip():
        raise ApiError(400, "The body is empty; it must be a JSON object")
    check_shape(body)
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            repaired = _without_lone_surrogates(body)
            if repaired == body:
                raise
            return decoder.decode(repaired)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {_reason(body, error)}") from None


def decode_part(kind: type[T], raw: msgspec.Raw, param: str) -> T:
    """A part of a body that was left as it is, as a type; ApiError 400 names the field in it."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), param) from None
    except (ValueError, RecursionError):
        raise ApiError(400, f"Not valid JSON - at `{param}`", param=param) from None


def plain_object(raw: msgspec.Raw) -> dict[str, object]:
    """The JSON object in a part of a body that was left as it is; anything else is an empty one."""
    value: object = msgspec.json.decode(raw)
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def _wrong_type(message: str, inside: str = "$") -> ApiError:
    """What msgspec says, with the path of the field from the top of the body."""
    place = _PLACE.search(message)
    param = inside + place[1][1:] if place else (inside if inside != "$" else None)
    if inside != "$":
        message = f"{_PLACE.sub('', message)} - at `{param}`"
    if len(message) > _MAX_MESSAGE:  # it may quote what the client sent
        message = f"{message[:_MAX_MESSAGE]}... - at `{param}`"
    return ApiError(400, message, param=param)


def _reason(body: bytes, error: ValueError) -> str:
    """What is wrong with the text: orjson names the line and column."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as better:
        return str(better)
    return str(error)


def _without_lone_surrogates(body: bytes) -> bytes:
    def repair(found: re.Match[bytes]) -> bytes:
        return rb"\ufffd" if found[2] else found[0]

    return _ESCAPE.sub(repair, body)
