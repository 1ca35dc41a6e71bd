"""The tokenizer of a model in a GGUF file, as tokenizer.json and tokenizer_config.json.

Knows nothing about weights. Two kinds: byte-level BPE ("gpt2") with the pre-tokenizers named here,
and SentencePiece's BPE with bytes for the rest ("llama"), whose merges follow from the scores.
"""

from collections.abc import Mapping

from omlx.errors import ModelError
from omlx.models.gguf_config import token_ids
from omlx.models.gguf_read import GgufFile

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
# Regular expressions that split a text before BPE, by the name that files give them; empty: the
# one of GPT-2, which is built in.
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (),
    "default": (),
    "smollm": (),
    "llama-bpe": (rf"{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}[\r\n]*|{_SPACES}",),
    "qwen2": (rf"{_WORDS}|\p{{N}}|{_MARKS}[\r\n]*|{_SPACES}",),
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
        rf"|\p{{N}}|{_MARKS}[\r\n/]*|{_SPACES}",
    ),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    ),
}
_SAME_SPLITS = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "llama3-8b": "llama-bpe"}
_IGNORES_MERGES = frozenset({"llama-bpe", "tekken"})
_COMPOSED = frozenset({"qwen2"})  # NFC comes first
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPACE = "▁"


def tokenizer(gguf: GgufFile, *, window: int) -> tuple[dict[str, object], dict[str, object]]:
    """The new tokenizer.json and tokenizer_config.json; ModelError for kinds that are not known."""
    kind = gguf.text("tokenizer.ggml.model")
    pre = gguf.metadata.get("tokenizer.ggml.pre", "default")
    pre = _SAME_SPLITS.get(pre, pre) if isinstance(pre, str) else pre
    if kind not in ("gpt2", "llama") or (kind == "gpt2" and pre not in _SPLITS):
        raise ModelError(
            f"{gguf.path} has the tokenizer {kind!r} of kind {pre!r}, which can't be imported yet",
            hint=f"Known are 'llama', and of 'gpt2' the kinds: {', '.join(sorted(_SPLITS))}.",
        )
    tokens = gguf.texts("tokenizer.ggml.tokens")
    types = gguf.integers("tokenizer.ggml.token_type")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or len(types) != len(tokens):
        raise ModelError(f"{gguf.path} repeats a token, or leaves one without its type")
    added = [
        _added_token(token_id, token, is_special=own in (_CONTROL, _UNKNOWN))
        for token_id, (token, own) in enumerate(zip(tokens, types, strict=True))
        if own in (_CONTROL, _USER_DEFINED) or (own == _UNKNOWN and kind == "llama")
    ]
    if kind == "gpt2":
        parts = _byte_level(gguf, str(pre), vocab)
    else:
        parts = _sentencepiece(gguf, tokens, types, vocab)
    new: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **parts,
    }
    begins = gguf.metadata.get("tokenizer.ggml.add_bos_token", kind == "llama") is True
    ids = token_ids(gguf)
    if begins and "bos" in ids:
        new["post_processor"] = _beginning(tokens[ids["bos"]], ids["bos"])
    special = [tokens[token_id] for token_id, own in enumerate(types) if own == _CONTROL]
    named = {f"{n}_token": tokens[i] for n, i in ids.items() if n != "eot"}
    return new, {
        # This class takes tokenizer.json as it is; GPT2Tokenizer would not.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "add_bos_token": begins and "bos" in ids,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": window,
        "extra_special_tokens": special,
    }


def _added_token(token_id: int, token: str, *, is_special: bool) -> dict[str, object]:
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
    }


def _beginning(token: str, token_id: int) -> dict[str, object]:
    """A post-processor that puts a token before every text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": token, "type_id": 1}}, other],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def _byte_level(gguf: GgufFile, pre: str, vocab: Mapping[str, int]) -> dict[str, object]:
    splits = _SPLITS[pre]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": not splits,
    }
    steps: list[dict[str, object]] = []
    if pre == "smollm":
        steps.append({"type": "Digits", "individual_digits": True})
    regexes: list[dict[str, object]] = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
        for one in splits
    ]
    steps += regexes
    return {
        "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _IGNORES_MERGES,
            "vocab": vocab,
            "merges": _merges(gguf, vocab),
        },
    }


def _merges(gguf: GgufFile, vocab: Mapping[str, int]) -> list[list[str]]:
    merges = [merge.split(" ") for merge in gguf.texts("tokenizer.ggml.merges")]
    for pair in merges:
        if len(pair) != 2 or not {pair[0], pair[1], pair[0] + pair[1]} <= vocab.keys():
            raise ModelError(f"{gguf.path} has a merge of unknown tokens: {' '.join(pair)!r}")
    return merges


def _sentencepiece(
    gguf: GgufFile, tokens: list[str], types: list[int], vocab: Mapping[str, int]
) -> dict[str, object]:
    scores = gguf.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{gguf.path} leaves a token without its score")
    has_prefix = gguf.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    unknown = next((t for t, own in zip(tokens, types, strict=True) if own == _UNKNOWN), None)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = {"type": "Prepend", "prepend": _SPACE}
    decoders: list[dict[str, object]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]}
        if has_prefix
        else replace,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": any(own == _BYTE for own in types),
            "ignore_merges": False,
            "vocab": vocab,
            "merges": scored_merges(tokens, types, scores),
        },
    }


def scored_merges(tokens: list[str], types: list[int], scores: list[float]) -> list[list[str]]:
    """The merges that SentencePiece would make, best score first: all pairs of tokens that make a
    token. Of pairs that make the same one, those of earlier tokens come first."""
    usable = {
        token: token_id
        for token_id, (token, own) in enumerate(zip(tokens, types, strict=True))
        if own in (_NORMAL, _USER_DEFINED)
    }
    found: list[tuple[float, int, int, int]] = []
    for token, token_id in usable.items():
        if types[token_id] != _NORMAL:
            continue
        for at in range(1, len(token)):
            left, right = usable.get(token[:at]), usable.get(token[at:])
            if left is not None and right is not None:
                found.append((-scores[token_id], token_id, left, right))
    found.sort()
    return [[tokens[left], tokens[right]] for _, _, left, right in found]
