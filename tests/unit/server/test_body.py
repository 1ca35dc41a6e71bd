import msgspec
import pytest

from omlx.server.body import decode
from omlx.server.errors import ApiError


class Shape(msgspec.Struct):
    name: str
    numbers: list[int] = []


DECODER = msgspec.json.Decoder(Shape)


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(DECODER, body)
    assert caught.value.status == 400
    return caught.value


def test_unknown_fields_are_ignored():
    assert decode(DECODER, b'{"name":"a","extra":{"b":[1]}}') == Shape("a")


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_said_to_be_empty(body):
    assert "empty" in refusal(body).message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"name":1}', "$.name"),
        (b'{"name":"a","numbers":[1,"2"]}', "$.numbers[1]"),
        (b"[]", None),
        (b"{}", None),
    ],
)
def test_a_wrong_type_names_its_field(body, param):
    assert refusal(body).param == param


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"name":"a"} x',
        b'{"name":NaN}',
        b'{"name":"a\xff"}',
        b'\xef\xbb\xbf{"name":"a"}',
        b'{"name":"a\x00"}',
        b"\x00\x01\x02",
    ],
)
def test_what_is_not_json_is_said_not_to_be(body):
    assert refusal(body).message.startswith("The body is not valid JSON: ")


def test_the_place_of_a_mistake_in_the_text_is_named():
    assert "line 2 column" in refusal(b'{"name":\nx}').message


def test_deep_nesting_is_refused():
    assert "deep" in refusal(b'{"name":"a","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}").message


def test_what_the_client_sent_is_not_quoted_at_length():
    class Choice(msgspec.Struct, tag="only"):
        pass

    with pytest.raises(ApiError) as caught:
        decode(msgspec.json.Decoder(Choice), b'{"type":"' + b"x" * 10_000 + b'"}')
    assert len(caught.value.message) < 600
    assert caught.value.param == "$.type"


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"cut \ud83d", "cut �"),
        (rb"cut \uDE00 here", "cut � here"),
        (rb"\ud83d\ud83d\ude00", "�😀"),
        (rb"\ud83d\ude00", "😀"),
        (rb"\\ud83d \ud83d", "\\ud83d �"),
        (rb"\\\ud83d", "\\�"),
    ],
)
def test_half_an_emoji_becomes_a_replacement_character(escaped, text):
    assert decode(DECODER, b'{"name":"' + escaped + b'"}').name == text


def test_a_repaired_body_may_still_be_wrong():
    assert refusal(rb'{"name":"\ud83d","numbers":[true]}').param == "$.numbers[0]"
