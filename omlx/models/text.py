"""A model's text side: chat template, encoding, and tokens back to text, without mlx.

Knows nothing about engines, HTTP or stop strings; transformers comes in only as a fallback.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.config import context_window, items, mapping, read_json_if_there
from omlx.models.detokenize import (
    Detokenizer,
    PieceDetokenizer,
    Pieces,
    WindowDetokenizer,
    piece_rule,
)
from omlx.models.segments import Splice
from omlx.models.template import ChatTemplate, TemplateError
from omlx.models.tokenizer import Codec, Range, load_codec

_log = logging.getLogger("omlx.models")
_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class TextModel:
    """Text to tokens and back for one model; any thread may use it."""

    def __init__(
        self,
        codec: Codec,
        *,
        template: ChatTemplate | None,
        eos_ids: frozenset[int] = frozenset(),
        context_window: int | None = None,
        origin: str = "the model",
    ) -> None:
        self.eos_ids = eos_ids
        self.context_window = context_window
        self._codec = codec
        self._template = template
        self._origin = origin
        self._rule = piece_rule(codec.decoder)
        # By the special tokens that are a part of the text: few, and the same for each request.
        self._pieces: dict[frozenset[str], Pieces] = {}
        self._spelt: dict[int, bytes] = {}  # as many as the vocabulary has at most

    @classmethod
    def load(cls, path: Path, *, today: Callable[[], date] = date.today) -> "TextModel":
        """Read the text side of a model folder; ModelError says which file is at fault."""
        config = read_json_if_there(path / "config.json")
        tokenizer_config = read_json_if_there(path / "tokenizer_config.json")
        generation = read_json_if_there(path / "generation_config.json")
        codec = load_codec(path)
        special = _special_tokens(path, tokenizer_config)
        sources = _template_sources(path, tokenizer_config)
        template = ChatTemplate(sources, special=special, today=today) if sources else None
        eos_ids = frozenset(_eos_ids(codec, [generation, config], special))
        _warn(path, codec, template, eos_ids)
        return cls(
            codec,
            template=template,
            eos_ids=eos_ids,
            context_window=context_window(config, tokenizer_config),
            origin=str(path),
        )

    @property
    def has_template(self) -> bool:
        """Whether the model brings a chat template."""
        return self._template is not None

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text for chat messages; TemplateError where the template refuses them."""
        if self._template is None:
            raise TemplateError(
                f"{self._origin} has no chat template",
                hint="Put the model's chat_template.jinja into its folder.",
            )
        return self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            extra=extra or {},
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens in it are read as such, none are added."""
        return self._codec.encode(_without_surrogates(text))

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range] | None]:
        """The same ids, and for each range of characters that of its tokens; None: not known.

        `splices` are for stretches of the text whose tokens are known.
        """
        clean = _without_surrogates(text)
        ids, ranges = self._codec.encode_at(clean, chars, splices if clean == text else ())
        return ids, ranges if len(clean) == len(text) else None

    @property
    def identity(self) -> str:
        """The same for models whose tokenizers are the same; empty where that is not known."""
        return self._codec.identity

    def spelt(self, ids: Iterable[int]) -> list[bytes] | None:
        """What each token adds to a text that has begun, special ones too; None: not known."""
        if self._pieces_of(frozenset()) is None:
            return None
        known = self._spelt
        return [known[i] if i in known else known.setdefault(i, self.token_bytes(i)) for i in ids]

    def spell(self, ids: Sequence[int]) -> str:
        """Text of token ids with special tokens, as a prompt has it."""
        return self._codec.decode(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids without special tokens: exactly what a stream of them gives."""
        stream = self.stream()
        return "".join([*map(stream.add, ids), stream.finish()])

    @property
    def template(self) -> str:
        """The source of the chat template, the one for tools if there are several; maybe none."""
        return "" if self._template is None else self._template.source

    def token_id(self, text: str) -> int | None:
        """The token that is exactly this text."""
        return self._codec.token_id(text)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token spells, special ones too; empty for an id without a token."""
        token = self._codec.token(token_id) if 0 <= token_id < 2**32 else None
        if token is None or self._codec.is_special(token_id):
            return (token or "").encode()
        pieces = self._pieces_of(frozenset())
        spelt = pieces and pieces.bytes_of(token_id, is_first=False)
        return self._codec.decode([token_id]).encode() if spelt is None else spelt

    def stream(self, kept: frozenset[str] = frozenset()) -> Detokenizer:
        """A new detokenizer for one answer, in which the special tokens `kept` are text."""
        pieces = self._pieces_of(kept)
        if pieces is not None:
            return PieceDetokenizer(pieces)
        return WindowDetokenizer(
            self._codec.decode, is_skipped=self._is_skipped, mark=self._mark_among(kept)
        )

    def _pieces_of(self, kept: frozenset[str]) -> Pieces | None:
        if self._rule is None:
            return None
        marks = frozenset(text for text in kept if self.is_special(text))
        if marks not in self._pieces:
            self._pieces[marks] = Pieces(
                self._rule,
                token=self._codec.token,
                is_skipped=self._is_skipped,
                mark=self._mark_among(marks),
            )
        return self._pieces[marks]

    def _mark_among(self, kept: frozenset[str]) -> Callable[[int], str | None]:
        marks = {self._codec.token_id(text): text for text in kept if self.is_special(text)}
        return marks.get

    def is_special(self, text: str) -> bool:
        """Whether a text is a special token, which no other text can spell."""
        token_id = self._codec.token_id(text)
        return token_id is not None and self._codec.is_special(token_id)

    def _is_skipped(self, token_id: int) -> bool:
        return (
            not 0 <= token_id < 2**32
            or self._codec.is_special(token_id)
            or self._codec.token(token_id) is None
        )


def _without_surrogates(text: str) -> str:
    """The text with pairs of surrogates, which JSON can carry, joined and lone ones replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _special_tokens(path: Path, tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """The named special tokens that templates may print."""
    named = {**read_json_if_there(path / "special_tokens_map.json"), **tokenizer_config}
    found = {name: _token_text(named.get(name)) for name in _SPECIAL_NAMES}
    more = mapping(tokenizer_config.get("extra_special_tokens"))
    found |= {name: _token_text(value) for name, value in more.items()}
    return {name: text for name, text in found.items() if text is not None}


def _token_text(value: object) -> str | None:
    match value:
        case str(text) | {"content": str(text)}:
            return text
        case _:
            return None


def _template_sources(path: Path, tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """Templates by name; a file of its own beats an entry in a JSON file."""
    entries = (
        tokenizer_config.get("chat_template"),
        read_json_if_there(path / "chat_template.json").get("chat_template"),
    )
    sources: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, str):
            sources["default"] = entry
        sources |= dict(_named_templates(items(entry)))
    files = {file.stem: file for file in sorted(path.glob("additional_chat_templates/*.jinja"))}
    if (path / "chat_template.jinja").exists():
        files["default"] = path / "chat_template.jinja"
    return sources | {name: _read_text(file) for name, file in files.items()}


def _named_templates(entries: Sequence[object]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        match entry:
            case {"name": str(name), "template": str(text)}:
                yield name, text
            case _:
                pass


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise ModelError(f"{file} can't be read: {error.strerror}") from None
    except ValueError:
        raise ModelError(f"{file} is not UTF-8 text") from None


def _eos_ids(
    codec: Codec, configs: Sequence[Mapping[str, object]], special: Mapping[str, str]
) -> Iterator[int]:
    for config in configs:
        for source in (config, mapping(config.get("text_config"))):
            value = source.get("eos_token_id")
            yield from (i for i in [value, *items(value)] if type(i) is int)
    token_id = codec.token_id(special.get("eos_token", ""))
    if token_id is not None:
        yield token_id


def _warn(path: Path, codec: Codec, template: ChatTemplate | None, eos_ids: frozenset[int]) -> None:
    if not codec.num_special:
        _log.warning("%s: the tokenizer has no special tokens; chats may never end", path)
    if not eos_ids:
        _log.warning("%s: no end-of-sequence token is named; answers end at max_tokens", path)
    try:
        if template is not None:
            template.check()
    except TemplateError as error:
        _log.warning("%s: %s", path, error)


__all__ = ["Detokenizer", "TemplateError", "TextModel"]
