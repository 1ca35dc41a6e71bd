"""Builds tiny tokenizers and model folders for tests.

Knows nothing about what is tested with them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level() -> Tokenizer:
    """Every byte alone, a few words, special tokens and one added token that is not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["th", "the", "Ġt", "Ġthe", "Ã©", "ðŁ", "ðŁĺ", "Ģ"]
    vocab = {piece: n for n, piece in enumerate([*SPECIAL, *alphabet])}
    for word in words:
        vocab.setdefault(word, len(vocab))
    merges = [("t", "h"), ("th", "e"), ("Ġ", "t"), ("Ġt", "h"), ("Ġ", "the")]
    vocab.setdefault("Ġth", len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<｜tool call｜>", normalized=False)])
    return tokenizer


def sentencepiece(*, strip: int = 1) -> Tokenizer:
    """Spaces as ▁, byte tokens for the rest, as Llama 2 and Gemma have them."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    pieces += ["▁", "▁▁▁", "▁the", "the", "a", "▁a", "b", "é", "😀", "▁é"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: n for n, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", strip, 0)] if strip else steps
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    """A unigram tokenizer whose decoder drops the first token's spaces, or not."""
    pieces = ["<unk>", "</s>", "▁", "▁▁", "▁the", "the", "a", "▁a", "é", "x▁y"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def wordpiece() -> Tokenizer:
    """A tokenizer whose decoder puts spaces between tokens."""
    pieces = ["[UNK]", "[SEP]", "the", "cat", "##s", "sit", "##ting", "é"]
    tokenizer = Tokenizer(
        models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[SEP]"])
    return tokenizer


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def text_folder(
    folder: Path,
    *,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
    config: Mapping[str, object] | None = None,
    tokenizer_config: Mapping[str, object] | None = None,
) -> Path:
    """A model folder with everything but weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", config if config is not None else {"model_type": "llama"})
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>"}
    named |= {
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        **(tokenizer_config or {}),
    }
    write_json(folder / "tokenizer_config.json", named)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    return folder


def chat(*turns: tuple[str, object]) -> Sequence[dict[str, object]]:
    """Messages from (role, content) pairs."""
    return [{"role": role, "content": content} for role, content in turns]
