"""Prompts have exactly as many tokens as they are asked for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.bench.failure import BenchError
from omlx.bench.workload import Words, fitting, token_ids
from omlx.models.text import TextModel
from tests.fakes.model_folder import write_model_folder


def _by_words(text: str) -> int:
    return len(text.split())


def _by_pieces(text: str) -> int:
    """Words of more than three letters are two tokens."""
    return sum(1 + (len(word) > 3) for word in text.split())


def _merging(text: str) -> int:
    """Two equal words in a row are one token, so that costs don't add up."""
    words = text.split()
    return sum(a != b for a, b in zip(words, ["", *words], strict=False))


COUNTS = {"words": _by_words, "pieces": _by_pieces, "merging": _merging, "characters": len}


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("number", [16, 17, 100, 1000])
def test_exactly_so_many(count, number: int) -> None:
    assert count(Words(count).text(number, seed="a")) == number


@given(number=st.integers(8, 400), seed=st.text(max_size=8))
def test_any_number_and_seed(number: int, seed: str) -> None:
    assert _by_pieces(Words(_by_pieces).text(number, seed=seed)) == number


def test_a_seed_gives_the_same_text_and_others_begin_otherwise() -> None:
    words = Words(_by_words)
    texts = [words.text(50, seed=str(seed)) for seed in range(40)]
    assert texts[3] == words.text(50, seed="3")
    assert len({text.split()[0] for text in texts}) == 40


def test_what_stands_around_the_text_is_counted() -> None:
    text = Words(_by_words).text(20, seed="a", around=lambda text: f"system user {text} end")
    assert _by_words(text) == 17


def test_the_models_own_tokenizer_counts(tmp_path: Path) -> None:
    model = TextModel.load(write_model_folder(tmp_path))
    words = Words(lambda text: len(model.encode(text)))
    for number in (64, 65, 66, 333):
        assert len(model.encode(words.text(number, seed="a"))) == number


@pytest.mark.parametrize(
    ("count", "number", "said"),
    [
        (len, 3, "the shortest one has 6"),
        (lambda text: 2 * len(text.split()), 21, "no text of exactly 21 tokens"),
    ],
)
def test_what_can_not_be_had(count, number: int, said: str) -> None:
    with pytest.raises(BenchError, match=said) as caught:
        Words(count).text(number, seed="a")
    assert caught.value.hint


def test_a_tokenizer_without_words() -> None:
    with pytest.raises(BenchError, match="counts no word"):
        Words(lambda text: 1)


def test_token_ids() -> None:
    ids = token_ids(500, seed="a", num_vocab=20)
    assert len(ids) == 500
    assert set(ids) == set(range(3, 20))
    assert ids == token_ids(500, seed="a", num_vocab=20)
    assert ids != token_ids(500, seed="b", num_vocab=20)
    assert set(token_ids(9, seed="a", num_vocab=1)) == {0}


def test_lengths_that_fit() -> None:
    assert fitting((512, 1024, 2048), window=1100, reserve=76) == [512, 1024]
    assert fitting((512, 1024), window=None, reserve=9) == [512, 1024]
