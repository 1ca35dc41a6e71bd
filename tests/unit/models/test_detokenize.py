"""Streams of tokens: the text equals the tokenizer's own, and never holds half a character.

Knows nothing about chat templates.
"""

import json
import random

import pytest
from tokenizers import Tokenizer

from omlx.models.detokenize import (
    Detokenizer,
    PieceDetokenizer,
    PieceRule,
    Pieces,
    WindowDetokenizer,
    piece_rule,
)
from omlx.models.text import TextModel
from omlx.models.tokenizer import FastCodec
from tests.unit.models import tiny


def model(tokenizer: Tokenizer) -> TextModel:
    decoder = json.loads(tokenizer.to_str())["decoder"]
    return TextModel(FastCodec(tokenizer, decoder=decoder), template=None)


def sequences(tokenizer: Tokenizer, *, seed: int, num: int = 400) -> list[list[int]]:
    rng = random.Random(seed)
    size = tokenizer.get_vocab_size() + 5  # ids past the vocabulary: padded embeddings have them
    return [[rng.randrange(size) for _ in range(rng.randrange(30))] for _ in range(num)]


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.add, ids), detokenizer.finish()]


BYTE_LEVEL = tiny.byte_level()
BYTE_TOKEN = BYTE_LEVEL.token_to_id


def test_byte_level_stream_equals_decode_for_any_ids() -> None:
    text = model(BYTE_LEVEL)
    for ids in sequences(BYTE_LEVEL, seed=1):
        assert "".join(stream(text.stream(), ids)) == BYTE_LEVEL.decode(ids)


def test_unfinished_characters_are_held_back() -> None:
    text = model(BYTE_LEVEL)
    ids = text.encode("né😀!")
    assert len(ids) == 8
    assert stream(text.stream(), ids) == ["n", "", "é", "", "", "", "😀", "!", ""]


def test_unfinished_character_at_the_end_is_replaced() -> None:
    text = model(BYTE_LEVEL)
    ids = text.encode("a😀")[:-1]
    assert stream(text.stream(), ids) == ["a", "", "", "", "\ufffd"]
    assert text.decode(ids) == "a\ufffd" == BYTE_LEVEL.decode(ids)


def test_no_piece_ever_holds_half_a_character() -> None:
    """Text made of whole characters never shows a replacement or a surrogate on the way."""
    text = model(BYTE_LEVEL)
    ids = text.encode("Ünï 😀🇫🇷 漢字 👩\u200d👩\u200d👧")
    for piece in stream(text.stream(), ids):
        assert "\ufffd" not in piece
        piece.encode()


def test_encoded_surrogates_are_replaced() -> None:
    ids = [BYTE_TOKEN(piece) for piece in ("í", "ł", "Ģ")]  # ED A0 80
    assert None not in ids
    assert model(BYTE_LEVEL).decode(ids) == "\ufffd" * 3 == BYTE_LEVEL.decode(ids)


def test_special_tokens_and_unknown_ids_add_nothing() -> None:
    text = model(BYTE_LEVEL)
    word = BYTE_TOKEN("the")
    ids = [BYTE_TOKEN("<|im_start|>"), word, 10**6, -1, 2**40, BYTE_TOKEN("<|im_end|>"), word]
    assert stream(text.stream(), ids) == ["", "the", "", "", "", "", "the", ""]


def test_added_tokens_that_are_not_special_are_text() -> None:
    text = model(BYTE_LEVEL)
    assert text.decode(text.encode("<｜tool call｜>")) == "<｜tool call｜>"


@pytest.mark.parametrize("strip", [0, 1, 2])
def test_sentencepiece_stream_equals_decode(strip: int) -> None:
    tokenizer = tiny.sentencepiece(strip=strip)
    text = model(tokenizer)
    words = [n for n in range(tokenizer.get_vocab_size()) if not 3 <= n < 3 + 256]
    smile = [3 + byte for byte in "😀".encode()]
    rng = random.Random(2)
    for _ in range(400):
        groups = [smile if rng.random() < 0.2 else [rng.choice(words)] for _ in range(12)]
        ids = [token_id for group in groups for token_id in group]
        assert "".join(stream(text.stream(), ids)) == tokenizer.decode(ids)


def test_sentencepiece_leading_space_goes_once() -> None:
    tokenizer = tiny.sentencepiece()
    text = model(tokenizer)
    the, special = tokenizer.token_to_id("▁the"), tokenizer.token_to_id("<s>")
    assert stream(text.stream(), [special, the, the]) == ["", "the", " the", ""]
    assert text.decode(text.encode("a b")) == "a b"


def test_sentencepiece_bytes_wait_for_their_character() -> None:
    text = model(tiny.sentencepiece())
    ids = text.encode("a漢")
    assert stream(text.stream(), ids) == ["", "a", "", "", "漢", ""]


def test_broken_byte_tokens_spoil_only_themselves() -> None:
    tokenizer = tiny.sentencepiece()
    broken = [3 + 0xE6, tokenizer.token_to_id("b"), 3 + 0x80, tokenizer.token_to_id("a")]
    text = model(tokenizer)
    assert "".join(stream(text.stream(), broken)) == "\ufffdb\ufffda" == tokenizer.decode(broken)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace_stream_equals_decode(scheme: str) -> None:
    tokenizer = tiny.metaspace(scheme)
    text = model(tokenizer)
    assert isinstance(text.stream(), PieceDetokenizer)
    for ids in sequences(tokenizer, seed=3):
        assert "".join(stream(text.stream(), ids)) == tokenizer.decode(ids)


def test_other_tokenizers_are_decoded_by_window() -> None:
    tokenizer = tiny.wordpiece()
    text = model(tokenizer)
    assert isinstance(text.stream(), WindowDetokenizer)
    words = [n for n in range(2, tokenizer.get_vocab_size())]
    rng = random.Random(4)
    for _ in range(200):
        ids = [tokenizer.token_to_id("the"), *rng.choices(words, k=8), 1, 999]
        assert "".join(stream(text.stream(), ids)) == tokenizer.decode(ids)


def test_window_gives_byte_level_text_too() -> None:
    """The fallback is exact for tokenizers that have a faster way, so the two agree."""

    def decode(ids: object) -> str:
        return BYTE_LEVEL.decode(ids, skip_special_tokens=False)

    text = model(BYTE_LEVEL)
    for sentence in ("né😀! the the", "漢字 😀😀", ""):
        ids = text.encode(sentence)
        window = WindowDetokenizer(decode, is_skipped=lambda token_id: token_id < 3)
        assert "".join(stream(window, [1, *ids, 2])) == sentence


def test_window_gives_up_on_a_character_that_never_ends() -> None:
    asked: list[int] = []

    def decode(ids: object) -> str:
        asked.append(len(list(ids)))  # type: ignore[call-overload]
        return "\ufffd" * asked[-1]

    window = WindowDetokenizer(decode, is_skipped=lambda _: False)
    text = "".join(window.add(7) for _ in range(1000)) + window.finish()
    assert text == "\ufffd" * 1000
    assert max(asked) <= 64


def test_piece_work_does_not_grow_with_the_answer() -> None:
    asked: list[int] = []

    def token(token_id: int) -> str:
        asked.append(token_id)
        return "a"

    pieces = Pieces(PieceRule(), token=token, is_skipped=lambda _: False)
    detokenizer = PieceDetokenizer(pieces)
    assert "".join(stream(detokenizer, [5] * 10_000)) == "a" * 10_000
    assert asked == [5]


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {
            "type": "Sequence",
            "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Fuse"}]},
        {"type": "Replace", "pattern": {"Regex": "x+"}, "content": " "},
        "ByteLevel",
    ],
)
def test_decoders_that_do_more_than_join_are_left_to_the_window(decoder: object) -> None:
    assert piece_rule(decoder) is None
