import json

import pytest

from omlx.server.errors import ApiError
from omlx.server.shape import MAX_CONTAINERS, MAX_DEPTH, check_shape


def is_refused(body: bytes) -> bool:
    try:
        check_shape(body)
    except ApiError as error:
        assert error.status == 400
        assert str(MAX_DEPTH) in error.message or str(MAX_CONTAINERS) in error.message
        return True
    return False


def nested(depth: int, opener: bytes = b"[", closer: bytes = b"]", inside: bytes = b"") -> bytes:
    return opener * depth + inside + closer * depth


@pytest.mark.parametrize(
    ("opener", "closer"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a]":', b"}]")]
)
def test_the_depth_is_counted_exactly(opener, closer):
    levels = len(opener.translate(None, b'"]a:'))
    most = MAX_DEPTH // levels
    assert not is_refused(nested(most, opener, closer, b"0"))
    assert is_refused(nested(most + 1, opener, closer, b"0"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        '"' + "[" * 5000,
        "\\" + "[" * 5000,
        "\\\\" + "{" * 5000,
        '\\"' + "[" * 5000,
        '\\\\"' + "[" * 5000 + '"\\',
        "\\" * 7 + '"' * 5 + "[" * 5000,
    ],
)
def test_brackets_in_texts_do_not_count(text):
    body = json.dumps({"a": text, text: [text, {"b": text}]}).encode()
    assert not is_refused(body)
    assert is_refused(body[:-1] + b',"c":' + nested(MAX_DEPTH) + b"}")


def test_many_flat_lists_are_not_deep():
    assert not is_refused(b"[" + b"[],{}," * 10_000 + b"[]]")


def test_too_many_objects_and_lists():
    assert not is_refused(b"[" + b",".join([b"{}"] * (MAX_CONTAINERS - 1)) + b"]")
    assert is_refused(b"[" + b",".join([b"{}"] * MAX_CONTAINERS) + b"]")


@pytest.mark.parametrize(
    "body",
    [b"[" * 10_000, b'"' + b'\\"' * 100_000, b'"' * 100_001, b"\\" * 100_001, b"]" * 100_000],
)
def test_what_is_no_json_is_left_to_the_decoder_or_refused(body):
    is_refused(body)
