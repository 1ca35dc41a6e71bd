"""Loads a model's tokenizer: tokenizer.json by itself, or through transformers where it is missing.

Knows nothing about chat templates or streams.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
from tokenizers import Tokenizer

from omlx.errors import ModelError
from omlx.models.segments import Range, SegmentEncoder, Splice


class Codec(Protocol):
    """Text to token ids and back; any thread may use it."""

    @property
    def decoder(self) -> object:
        """The "decoder" entry of tokenizer.json, or None."""
        ...

    @property
    def identity(self) -> str:
        """The same for tokenizers that are the same; empty where that is not known."""
        ...

    @property
    def num_special(self) -> int:
        """How many tokens are special."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of the text, special tokens in it included and none added."""
        ...

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range] | None]:
        """The same ids, and for each range of characters that of its tokens; None: not known.

        `splices` are for stretches of the text whose tokens are known.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        ...

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells an id; None for an id outside it."""
        ...

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token (never part of an answer's text)."""
        ...


class FastCodec:
    """A tokenizer of the tokenizers library."""

    def __init__(self, tokenizer: Tokenizer, *, decoder: object, identity: str = "") -> None:
        # A tokenizer.json may carry its training's limits; a prompt must never be cut silently.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._segments = SegmentEncoder(tokenizer)
        self._special = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self.decoder = decoder
        self.identity = identity

    @property
    def num_special(self) -> int:
        """How many tokens are special."""
        return len(self._special)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, special tokens in it included and none added."""
        return self._segments.encode(text)

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range] | None]:
        """The same ids, and for each range of characters that of its tokens."""
        return self._segments.encode_at(text, chars, splices)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells an id; None for an id outside it."""
        return self._tokenizer.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry."""
        return self._tokenizer.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token."""
        return token_id in self._special


class SlowCodec:
    """A tokenizer of transformers that is written in Python."""

    decoder: object = None
    identity = ""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(cast(list[int], tokenizer.all_special_ids))
        self._vocab = cast(dict[str, int], tokenizer.get_vocab())
        self._tokens = {token_id: token for token, token_id in self._vocab.items()}

    @property
    def num_special(self) -> int:
        """How many tokens are special."""
        return len(self._special)

    def encode(self, text: str) -> list[int]:
        """Ids of the text, special tokens in it included and none added."""
        return cast(list[int], self._tokenizer.encode(text, add_special_tokens=False))

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range] | None]:
        """The same ids; where they come from is not known, nor are any tokens taken as they are."""
        return self.encode(text), None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included; ids outside the vocabulary are left out."""
        known = [token_id for token_id in ids if token_id in self._tokens]
        return cast(str, self._tokenizer.decode(known, skip_special_tokens=False))

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells an id; None for an id outside it."""
        return self._tokens.get(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of a vocabulary entry."""
        return self._vocab.get(token)

    def is_special(self, token_id: int) -> bool:
        """Whether an id is a special token."""
        return token_id in self._special


class _TokenizerFile(msgspec.Struct):
    decoder: Any = None


def load_codec(path: Path) -> Codec:
    """The tokenizer of a model folder; ModelError where there is none that can be used."""
    file = path / "tokenizer.json"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return _load_by_transformers(path)
    except OSError as error:
        raise ModelError(f"{file} can't be read: {error.strerror}") from None
    try:
        return _fast_codec(data)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ModelError(f"{file} is not a usable tokenizer: {error}") from None


def _fast_codec(data: bytes) -> FastCodec:
    decoder: object = msgspec.json.decode(data, type=_TokenizerFile).decoder
    identity = hashlib.sha256(data).hexdigest()
    return FastCodec(Tokenizer.from_buffer(data), decoder=decoder, identity=identity)


def _load_by_transformers(path: Path) -> Codec:
    # Imported only here: it takes seconds, and nearly every model has a tokenizer.json.
    from transformers import AutoTokenizer

    hint = "The folder needs tokenizer.json, or files that transformers' AutoTokenizer can read."
    try:
        tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{path} has no usable tokenizer: {reason}", hint=hint) from None
    if tokenizer.is_fast:
        return _fast_codec(cast(str, tokenizer.backend_tokenizer.to_str()).encode())
    return SlowCodec(tokenizer)
