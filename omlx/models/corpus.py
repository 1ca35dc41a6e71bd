"""Reads texts that a model is judged by, and cuts their tokens into contexts.

Knows nothing about models' weights. A file is taken for hostile: its size is bounded before it is
read, and what is no text is refused with its place.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from omlx.errors import ModelError
from omlx.models.config import mapping, read_json_if_there
from omlx.models.text import TextModel

# No tokenizer is known that makes fewer than one token of so many bytes of a real text.
_BYTES_PER_TOKEN = 32
_MAX_BYTES = 64 * 2**20
_MIN_TOKENS = 2  # one to begin with, and one to predict


@dataclass(frozen=True, slots=True)
class Source:
    """A text file, and what its part of the result is called."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Context:
    """Tokens that a model sees together, from an empty cache; the first is predicted by nothing."""

    source: str
    tokens: tuple[int, ...]

    @property
    def num_predicted(self) -> int:
        """How many tokens are predicted from those before them."""
        return len(self.tokens) - 1


def read_text(path: Path, *, max_tokens: int) -> str:
    """The beginning of a UTF-8 text that surely holds so many tokens, or all; ModelError."""
    limit = min(_MAX_BYTES, max(2**16, max_tokens * _BYTES_PER_TOKEN))
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ModelError(
            f"--text: {path} can't be read: {error.strerror or error}",
            hint="Name a text file that can be read.",
        ) from None
    is_cut = len(data) > limit
    try:
        # A character may be cut at the end, but nowhere else.
        text = data[:limit].decode("utf-8-sig", "strict")
    except UnicodeDecodeError as error:
        if not is_cut or error.start < limit - 3:
            raise ModelError(
                f"--text: {path} is not UTF-8 text: byte {error.start} is wrong",
                hint="Convert it to UTF-8, with iconv for example.",
            ) from None
        text = data[: error.start].decode("utf-8-sig")
    if "\0" in text:
        raise ModelError(
            f"--text: {path} holds a zero byte at character {text.index(chr(0))}: it is no text",
            hint="Name a text file.",
        )
    return text


def contexts(
    model: Path, sources: Sequence[Source], *, max_tokens: int, context: int
) -> list[Context]:
    """The texts as contexts of at most `context` tokens, `max_tokens` in all, in equal shares.

    Each context begins with what the model's tokenizer puts before a text, such as its BOS token.
    ModelError where a text gives nothing to predict.
    """
    text_model = TextModel.load(model)
    window = text_model.context_window
    size = min(context, window) if window is not None else context
    first = prefix_ids(model)
    if size < len(first) + _MIN_TOKENS:
        raise ModelError(f"--context: {size} tokens leave nothing to predict")
    share = -(-max_tokens // len(sources))
    found: list[Context] = []
    for source in sources:
        ids = text_model.encode(read_text(source.path, max_tokens=share))[:share]
        cut = [Context(source.name, (*first, *piece)) for piece in _pieces(ids, size - len(first))]
        cut = [one for one in cut if one.num_predicted > 0]
        if not cut:
            raise ModelError(
                f"--text: {source.path} has no tokens to predict",
                hint=f"A text needs at least {_MIN_TOKENS} tokens.",
            )
        found += cut
    return found


def prefix_ids(model: Path) -> tuple[int, ...]:
    """The ids that a model's tokenizer puts before every text: mostly none, or its BOS token."""
    file = model / "tokenizer.json"
    if not file.exists():
        return ()
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except ValueError as error:
        raise ModelError(f"{file} is not a usable tokenizer: {error}") from None
    tokenizer.no_truncation()
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    num_before = next(
        (idx for idx in range(len(whole)) if whole[idx : idx + len(plain)] == plain), 0
    )
    if num_before:
        return tuple(whole[:num_before])
    config = read_json_if_there(model / "tokenizer_config.json")
    bos = config.get("bos_token")
    bos = bos if isinstance(bos, str) else mapping(bos).get("content")
    token_id = tokenizer.token_to_id(bos) if isinstance(bos, str) else None
    return (token_id,) if config.get("add_bos_token") is True and token_id is not None else ()


def digest(found: Sequence[Context]) -> str:
    """The same for the same tokens in the same contexts: models must see the same."""
    hashed = hashlib.sha256()
    for one in found:
        hashed.update(f"{one.source}:{','.join(map(str, one.tokens))};".encode())
    return hashed.hexdigest()


def _pieces(ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
