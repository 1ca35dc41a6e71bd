"""Segments give the ids and ranges of the whole text, whether they are remembered or not."""

import random
import threading
from bisect import bisect_left, bisect_right

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from omlx.models.segments import SegmentEncoder
from tests.unit.models import tiny

PIECES = ["the ", "é", "😀", " ", "\n", "th", "a", "▁", "  the", "<", "|>", "<|im_st", "x y"]
MARKS = ["<|im_start|>", "<|im_end|>", "<｜tool call｜>", "<s>", "</s>", "<|endoftext|>"]


def with_odd_tokens() -> Tokenizer:
    """Tokens that take the blanks around them, or only stand alone, or hold another's beginning."""
    tokenizer = tiny.byte_level()
    odd = [
        AddedToken("<|im_mid|>", normalized=False, lstrip=True),
        AddedToken("<|im_sep|>", normalized=False, rstrip=True),
        AddedToken("the", normalized=True, single_word=True),
        AddedToken("a<|im", normalized=False),
    ]
    tokenizer.add_tokens(odd)
    return tokenizer


def lowered() -> Tokenizer:
    tokenizer = tiny.byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFC()])
    tokenizer.add_tokens([AddedToken("XY", normalized=True)])
    return tokenizer


TOKENIZERS = [
    tiny.byte_level,
    tiny.sentencepiece,
    lambda: tiny.metaspace("first"),
    lambda: tiny.metaspace("always"),
    lambda: tiny.metaspace("never"),
    with_odd_tokens,
    lowered,
]


def whole(tokenizer: Tokenizer, text: str, chars: list[tuple[int, int]]):
    """The same by the library alone, of the text at once."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ends = [end for _, end in encoding.offsets]
    starts = [start for start, _ in encoding.offsets]
    firsts = [bisect_right(ends, start) for start, _ in chars]
    lasts = [bisect_left(starts, end) for _, end in chars]
    return encoding.ids, [(f, max(f, last)) for f, last in zip(firsts, lasts, strict=True)]


@pytest.mark.parametrize("make", TOKENIZERS)
def test_segments_are_as_the_whole(make) -> None:
    tokenizer, rng = make(), random.Random(3)
    tokenizer.no_truncation()
    encoder = SegmentEncoder(tokenizer, max_chars=300)
    odd = ["<|im_mid|>", "<|im_sep|>", "XY", "a<|im"]
    for _ in range(300):
        parts = rng.choices([*PIECES, *MARKS * 2, *odd], k=rng.randrange(12))
        text = "".join(parts)
        edges = [sorted(rng.choices(range(len(text) + 1), k=2)) for _ in range(5)]
        chars = [(start, end) for start, end in edges if start < end]
        assert encoder.encode_at(text, chars) == whole(tokenizer, text, chars), text
        assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


class Counting:
    """A tokenizer that counts what it is asked to encode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.texts: list[str] = []

    def get_added_tokens_decoder(self):
        return self._tokenizer.get_added_tokens_decoder()

    def encode_batch(self, texts, **options):
        self.texts += texts
        return self._tokenizer.encode_batch(texts, **options)


def test_only_what_is_new_in_a_conversation_is_encoded() -> None:
    tokenizer = Counting(tiny.byte_level())
    encoder = SegmentEncoder(tokenizer)
    first = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>"
    encoder.encode(first + "a")
    tokenizer.texts.clear()
    encoder.encode_at(first + "ab<|im_end|>\n", [])
    assert tokenizer.texts == ["<|im_start|>ab"]


def test_the_segments_that_were_used_last_are_kept() -> None:
    tokenizer = Counting(tiny.byte_level())
    encoder = SegmentEncoder(tokenizer, max_chars=30)
    for text in ("<|im_end|>one", "<|im_end|>two", "<|im_end|>one", "<|im_end|>six"):
        encoder.encode(text)
    encoder.encode("<|im_end|>" + "x" * 100)  # too long to be kept
    tokenizer.texts.clear()
    for text in ("<|im_end|>one", "<|im_end|>two"):
        encoder.encode(text)
    assert tokenizer.texts == ["<|im_end|>two"]


def test_many_threads_may_encode() -> None:
    tokenizer = tiny.byte_level()
    encoder = SegmentEncoder(tokenizer, max_chars=100)
    texts = [f"<|im_start|>{'the ' * n}<|im_end|>{n}" for n in range(30)]
    wrong: list[str] = []

    def run() -> None:
        for text in texts * 5:
            if encoder.encode(text) != tokenizer.encode(text, add_special_tokens=False).ids:
                wrong.append(text)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
