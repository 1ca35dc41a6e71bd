"""Texts become contexts, and what is no text is refused with its place.

Knows nothing about models' weights.
"""

from pathlib import Path

import pytest
from tokenizers import processors

from omlx.errors import ModelError
from omlx.models.corpus import Source, contexts, digest, prefix_ids, read_text
from tests.unit.models import tiny
from tests.unit.models.tiny import text_folder


def source(tmp_path: Path, data: str | bytes, name: str = "t") -> Source:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return Source(name, path)


def with_bos(tmp_path: Path, **config: object) -> Path:
    tokenizer = tiny.byte_level()
    if not config:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
        )
    return text_folder(tmp_path, tokenizer=tokenizer, tokenizer_config=config)


def test_texts_are_cut_into_contexts_of_their_own(tmp_path: Path) -> None:
    model = text_folder(tmp_path)
    texts = [source(tmp_path, "z" * 25, "a"), source(tmp_path, "y" * 7, "b")]
    found = contexts(model, texts, max_tokens=1000, context=10)
    assert [(one.source, one.num_predicted) for one in found] == [
        ("a", 9), ("a", 9), ("a", 4), ("b", 6)
    ]  # fmt: skip


def test_every_text_gets_its_share(tmp_path: Path) -> None:
    texts = [source(tmp_path, "z" * 500, "a"), source(tmp_path, "y" * 500, "b")]
    found = contexts(text_folder(tmp_path), texts, max_tokens=31, context=100)
    assert [len(one.tokens) for one in found] == [16, 16]


def test_a_context_is_never_longer_than_the_window(tmp_path: Path) -> None:
    model = text_folder(tmp_path, config={"max_position_embeddings": 8})
    found = contexts(model, [source(tmp_path, "z" * 20)], max_tokens=99, context=512)
    assert [len(one.tokens) for one in found] == [8, 8, 4]


@pytest.mark.parametrize("config", [{}, {"add_bos_token": True, "bos_token": "<|im_start|>"}])
def test_contexts_begin_as_the_tokenizer_begins(tmp_path: Path, config: dict[str, object]) -> None:
    model = with_bos(tmp_path, **config)
    assert prefix_ids(model) == (1,)
    found = contexts(model, [source(tmp_path, "zzzzz")], max_tokens=99, context=4)
    assert [one.tokens[0] for one in found] == [1, 1]
    assert [len(one.tokens) for one in found] == [4, 3]


def test_a_last_token_alone_predicts_nothing(tmp_path: Path) -> None:
    found = contexts(text_folder(tmp_path), [source(tmp_path, "z" * 9)], max_tokens=99, context=4)
    assert [len(one.tokens) for one in found] == [4, 4]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "has no tokens to predict"),
        (b"z", "has no tokens to predict"),
        (b"ab\xffcd", "is not UTF-8 text: byte 2 is wrong"),
        (b"abc\xe2\x82", "is not UTF-8 text: byte 3 is wrong"),
        ("häh".encode("utf-16"), "is not UTF-8 text: byte 0 is wrong"),
        (b"ELF\0\1\2", "holds a zero byte at character 3"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        contexts(text_folder(tmp_path), [source(tmp_path, data)], max_tokens=9, context=9)


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_can_not_be_read_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="can't be read"):
        read_text(tmp_path / name, max_tokens=9)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert read_text(source(tmp_path, b"\xef\xbb\xbfab").path, max_tokens=9) == "ab"


@pytest.mark.parametrize("shift", range(4))
def test_of_a_large_file_the_beginning_is_read_to_a_whole_character(
    tmp_path: Path, shift: int
) -> None:
    text = "x" * shift + "\U0001f600" * 50_000
    found = read_text(source(tmp_path, text).path, max_tokens=1)
    assert text.startswith(found)
    assert 60_000 < len(found.encode()) <= 2**16


def test_a_window_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="leave nothing to predict"):
        contexts(text_folder(tmp_path), [source(tmp_path, "zzz")], max_tokens=9, context=1)


def test_other_tokens_have_another_digest(tmp_path: Path) -> None:
    model = text_folder(tmp_path)
    one, same, other = (
        digest(contexts(model, [source(tmp_path, text)], max_tokens=9, context=4))
        for text in ("zzzz", "zzzz", "zzzy")
    )
    assert one == same != other
