"""Grammars, and the tokens that they allow next: the one module that knows llguidance.

Knows nothing about batches, logits or mlx; the server imports it to check what it is asked for.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from omlx.engine.request import Grammar
from omlx.models.config import items, mapping, read_json_if_there

if TYPE_CHECKING:
    import numpy as np

_MAX_BYTES = 256 * 1024  # of a grammar's text
_COMPACT: Any = {  # one blank at most: more of them could go on for ever
    "whitespace_flexible": False,
    "item_separator": ",[ ]?",
    "key_separator": ":[ ]?",
    "lenient": False,
    "coerce_one_of": False,
}
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"


def _limits() -> LLParserLimits:
    """About 20 ms to build a lexer and a few for each mask."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=30_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def json_schema(schema: Mapping[str, Any] | bool, after: str = "") -> Grammar:
    """JSON that a schema allows."""
    text: Any = dict(schema) if isinstance(schema, Mapping) else {"allOf": [schema]}
    return Grammar(LLMatcher.grammar_from_json_schema(text, overrides=_COMPACT), after)


def json_rule(schema: Mapping[str, object]) -> str:
    """The same as a part of a Lark rule."""
    return f"%json {json.dumps({**schema, 'x-guidance': _COMPACT}, ensure_ascii=False)}"


def json_object(after: str = "") -> Grammar:
    """Any JSON object."""
    return json_schema({"type": "object"}, after)


def regex(pattern: str, after: str = "") -> Grammar:
    """Text that a regular expression matches as a whole."""
    return Grammar(LLMatcher.grammar_from_regex(pattern), after)


def choice(options: Sequence[str], after: str = "") -> Grammar:
    """One of these texts."""
    return lark("start: " + " | ".join(json.dumps(o, ensure_ascii=False) for o in options), after)


def lark(text: str, after: str = "") -> Grammar:
    """What a grammar in Lark's notation describes, `start` as a whole."""
    return Grammar(LLMatcher.grammar_from_lark(text), after)


def check(grammar: Grammar) -> str | None:
    """Why a grammar can't be had, None if it can (any thread; up to a second for a large one)."""
    if len(grammar.text.encode()) > _MAX_BYTES:
        return f"the grammar is larger than {_MAX_BYTES // 1024} KiB"
    try:
        is_error, messages = LLMatcher.validate_grammar_with_warnings(
            grammar.text, limits=_limits()
        )
    except ValueError as error:
        return str(error)
    return messages[0].split("\n\n")[0] if is_error or messages else None


class Vocabulary:
    """The tokens of one model as llguidance sees them, read when first needed (any thread)."""

    def __init__(self, model_path: Path, num_vocab: int) -> None:
        self._path = model_path
        self._num_vocab = num_vocab  # as many as there are logits: more than the tokenizer knows
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self.eos_ids: tuple[int, ...] = ()

    def tokenizer(self) -> LLTokenizer:
        """The tokenizer; ValueError with the reason if the model has none that can be used."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._read()
            return self._tokenizer

    def _read(self) -> LLTokenizer:
        try:
            text = (self._path / "tokenizer.json").read_text("utf-8")
        except OSError:
            raise ValueError("the model has no tokenizer.json: answers can't follow one") from None
        self.eos_ids = tuple(i for i in _eos_ids(self._path, text) if i < self._num_vocab)
        if not self.eos_ids:
            raise ValueError("the model names no token that ends an answer")
        return LLTokenizer(text, self._num_vocab, list(self.eos_ids))

    @property
    def num_words(self) -> int:
        """The size of a mask."""
        return (self._num_vocab + 31) // 32


def _eos_ids(path: Path, tokenizer_text: str) -> list[int]:
    """The ids that the model's files name as the end, as models.text reads them."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        config = read_json_if_there(path / name)
        for source in (config, mapping(config.get("text_config"))):
            value = source.get("eos_token_id")
            found.update(i for i in (value, *items(value)) if type(i) is int)
    named = read_json_if_there(path / "tokenizer_config.json").get("eos_token")
    content = named if isinstance(named, str) else mapping(named).get("content")
    tokenizer = mapping(json.loads(tokenizer_text))
    for entry in map(mapping, items(tokenizer.get("added_tokens"))):
        token = entry.get("id")
        if type(token) is int and entry.get("content") == content:
            found.add(token)
    return sorted(found)


class Compiled:
    """A grammar that is ready for a model's tokens."""

    def __init__(self, vocabulary: Vocabulary, grammar: Grammar) -> None:
        """ValueError with the reason if it can't be."""
        wrong = check(grammar)
        if wrong:
            raise ValueError(wrong)
        self._vocabulary = vocabulary
        self._after = grammar.after.encode()
        self._tokenizer = vocabulary.tokenizer()
        self._matcher = LLMatcher(self._tokenizer, grammar.text, log_level=0, limits=_limits())
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error().split("\n\n")[0])

    def begin(self, emitted: Sequence[int]) -> "Constraint":
        """The constraint of a row that has emitted these tokens before."""
        constraint = Constraint(
            self._vocabulary, self._tokenizer, self._matcher.deep_copy(), self._after
        )
        for token in emitted:
            constraint.accept(token)
        return constraint


class Constraint:
    """Where one row stands in its grammar. Engine thread only."""

    def __init__(
        self, vocabulary: Vocabulary, tokenizer: LLTokenizer, matcher: LLMatcher, after: bytes
    ) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._matcher = matcher
        self._after = after
        self._is_free = bool(after)
        self._tail = b""
        self._is_launched = False
        self.error = ""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return self._vocabulary.eos_ids

    @property
    def is_done(self) -> bool:
        """Whether nothing but the end may follow."""
        return not self._is_free and self._matcher.is_stopped()

    def follow(self, token: int) -> None:
        """Accept the input of a step, but the first: that is the prompt's or known (mutates)."""
        if self._is_launched:
            self.accept(token)
        self._is_launched = True

    def accept(self, token: int) -> None:
        """Go on by a token (mutates); what follows the end is of a step that is thrown away."""
        if token < 0 or self.error or self.is_done:
            return
        if self._is_free:
            self._tail += self._tokenizer.decode_bytes([token])
            self._is_free = self._after not in self._tail
            self._tail = self._tail[-len(self._after) :]
        elif not self._matcher.consume_token(token):
            self.error = "the answer has left its grammar"

    def mask(self) -> Mask:
        """One bit for each token that may follow, 32 to a word."""
        import numpy as np  # not in the server, which only checks grammars

        size = self._vocabulary.num_words
        if self._is_free or self.is_done:
            words = np.full(size, 0xFFFFFFFF if self._is_free else 0, dtype=np.uint32)
            for token in self.eos_ids:
                words[token // 32] ^= np.uint32(1 << token % 32)
        else:
            words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)[:size]
        if self._matcher.is_error():
            self.error = "the grammar is too complex: " + self._matcher.stop_reason()
        elif not words.any():
            self.error = "no token of the model goes on in the grammar"
        return words
