"""Writes an MLX model folder of the llama architecture as a GGUF file in float32.

Knows nothing about who reads the file; every weight keeps its exact value.
"""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from omlx.errors import ModelError
from omlx.models.config import items, mapping, read_json, read_json_if_there
from omlx.models.gguf_arrays import floats, rotated
from omlx.models.gguf_llama import (
    CONTROL,
    NAMED_TOKENS,
    PRE_TOKENIZERS,
    USER_DEFINED,
    Llama,
    tensors_of,
)
from omlx.models.gguf_read import BF16, F16, F32

_ALIGNMENT = 32
_VERSION = 3
_NORMAL, _UNUSED = 1, 5
_QUANTS = {"F32": F32, "F16": F16, "BF16": BF16}
_MAX_HEADER_BYTES = 256 * 2**20
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a tensor of the folder is: its file, type, shape (rows first), first byte, length."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of the new file: its name there, its source, and how many heads are rotated."""

    name: str
    source: _Stored
    rotated_heads: int

    @property
    def nbytes(self) -> int:
        """Bytes in float32."""
        count = 1
        for size in self.source.shape:
            count *= size
        return count * 4


def export_gguf(model_dir: Path, out: Path) -> None:
    """Write the model as a file that appears only when it is whole; one there is replaced.

    ModelError where the folder holds another architecture, quantized weights, or a tokenizer that
    GGUF has no name for.
    """
    config = read_json(model_dir / "config.json")
    model = _sizes(config, model_dir)
    tensors = _tensors(model_dir, model)
    head = _head({**_architecture(config, model), **_tokenizer(model_dir, model)}, tensors)
    half = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with half.open("wb") as file:
            file.write(head)
            for tensor in tensors:
                _write_tensor(file, tensor)
            file.flush()
            os.fsync(file.fileno())
        half.rename(out)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror}") from None
    finally:
        half.unlink(missing_ok=True)


def _sizes(config: Mapping[str, object], path: Path) -> Llama:
    kind = config.get("model_type")
    if kind != "llama":
        raise ModelError(
            f"{path} has the architecture {kind!r}, which can't be exported",
            hint="Only models whose model_type is llama can be written as GGUF.",
        )
    for key in ("rope_scaling", "quantization", "attention_bias", "mlp_bias"):
        if config.get(key):
            raise ModelError(f"{path} can't be exported: config.json sets {key}")
    width, heads = (
        _integer(config, "hidden_size", path),
        _integer(config, "num_attention_heads", path),
    )
    return Llama(
        num_layers=_integer(config, "num_hidden_layers", path),
        width=width,
        hidden=_integer(config, "intermediate_size", path),
        num_heads=heads,
        num_kv_heads=_integer(config, "num_key_value_heads", path, default=heads),
        head_size=_integer(config, "head_dim", path, default=width // heads),
        num_vocab=_integer(config, "vocab_size", path),
        is_tied=bool(config.get("tie_word_embeddings", True)),
    )


def _integer(
    config: Mapping[str, object], key: str, path: Path, *, default: int | None = None
) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{path / 'config.json'}: {key} is {value!r}, not a positive number")
    return value


def _tensors(model_dir: Path, model: Llama) -> list[_Tensor]:
    stored: dict[str, _Stored] = {}
    for file in sorted(model_dir.glob("*.safetensors")):
        stored |= _stored(file)
    tensors: list[_Tensor] = []
    for name, (source, shape, heads) in tensors_of(model).items():
        found = stored.get(f"{source}.weight")
        if found is None or found.shape != shape or found.kind not in _QUANTS:
            what = "is missing" if found is None else f"is {found.kind} {list(found.shape)}"
            raise ModelError(
                f"{model_dir}: the tensor {source}.weight {what}, not floats {list(shape)}"
            )
        tensors.append(_Tensor(name, found, heads))
    return tensors


def _stored(path: Path) -> dict[str, _Stored]:
    """The tensors of a safetensors file by their names."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ModelError(f"{path} is no safetensors file: its header is too long")
            header: object = json.loads(file.read(size))
            end = os.fstat(file.fileno()).st_size
    except (OSError, ValueError, struct.error):
        raise ModelError(f"{path} can't be read as a safetensors file") from None
    found: dict[str, _Stored] = {}
    for name, raw in mapping(header).items():
        entry = mapping(raw)
        if name == "__metadata__":
            continue
        begin, stop = (8 + size + cast(int, at) for at in items(entry.get("data_offsets")))
        if stop > end:
            raise ModelError(f"{path} is cut: {name} lies past its end")
        shape = tuple(cast(int, n) for n in items(entry.get("shape")))
        found[name] = _Stored(path, str(entry.get("dtype")), shape, begin, stop - begin)
    return found


def _write_tensor(file: BinaryIO, tensor: _Tensor) -> None:
    source = tensor.source
    with source.file.open("rb") as weights:
        weights.seek(source.offset)
        data = weights.read(source.nbytes)
    rows = source.shape[0] if len(source.shape) > 1 else 1
    values = floats(_QUANTS[source.kind], data, rows).astype("<f4", copy=False).tobytes()
    if tensor.rotated_heads:
        row_bytes = len(values) // rows
        values = rotated(values, num_heads=tensor.rotated_heads, row_bytes=row_bytes)
    file.write(values + bytes(-len(values) % _ALIGNMENT))


def _architecture(config: Mapping[str, object], model: Llama) -> dict[str, bytes]:
    return {
        "general.architecture": _text("llama"),
        "general.file_type": _u32(0),
        "llama.block_count": _u32(model.num_layers),
        "llama.context_length": _u32(_number(config, "max_position_embeddings", 2048)),
        "llama.embedding_length": _u32(model.width),
        "llama.feed_forward_length": _u32(model.hidden),
        "llama.attention.head_count": _u32(model.num_heads),
        "llama.attention.head_count_kv": _u32(model.num_kv_heads),
        "llama.attention.key_length": _u32(model.head_size),
        "llama.attention.value_length": _u32(model.head_size),
        "llama.attention.layer_norm_rms_epsilon": _f32(_number(config, "rms_norm_eps", 1e-5)),
        "llama.rope.dimension_count": _u32(model.head_size),
        "llama.rope.freq_base": _f32(_number(config, "rope_theta", 10_000.0)),
        "llama.vocab_size": _u32(model.num_vocab),
    }


def _number(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key)
    return value if isinstance(value, int | float) else default


def _tokenizer(model_dir: Path, model: Llama) -> dict[str, bytes]:
    tokenizer = read_json(model_dir / "tokenizer.json")
    bpe = mapping(tokenizer.get("model"))
    vocab = {text: cast(int, number) for text, number in mapping(bpe.get("vocab")).items()}
    tokens = [f"[unused {number}]" for number in range(model.num_vocab)]
    kinds = [_UNUSED] * model.num_vocab
    if max(vocab.values(), default=-1) >= model.num_vocab or bpe.get("type") != "BPE":
        raise ModelError(f"{model_dir / 'tokenizer.json'} is no BPE that fits config.json")
    for text, number in vocab.items():
        tokens[number], kinds[number] = text, _NORMAL
    for raw in items(tokenizer.get("added_tokens")):
        token = mapping(raw)
        number = cast(int, token.get("id"))
        tokens[number] = str(token.get("content"))
        kinds[number] = CONTROL if token.get("special") else USER_DEFINED
    merges = [
        raw if isinstance(raw, str) else " ".join(map(str, items(raw)))
        for raw in items(bpe.get("merges"))
    ]
    found = {
        "tokenizer.ggml.model": _text("gpt2"),
        "tokenizer.ggml.pre": _text(_pre_tokenizer(tokenizer, model_dir)),
        "tokenizer.ggml.tokens": _array(8, [_string(token) for token in tokens]),
        "tokenizer.ggml.token_type": _array(5, [struct.pack("<i", kind) for kind in kinds]),
        "tokenizer.ggml.merges": _array(8, [_string(merge) for merge in merges]),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", 7, False),
    }
    template = model_dir / "chat_template.jinja"
    if template.exists():
        found["tokenizer.chat_template"] = _text(template.read_text())
    return found | _named_tokens(model_dir, {text: number for number, text in enumerate(tokens)})


def _named_tokens(model_dir: Path, vocab: Mapping[str, int]) -> dict[str, bytes]:
    """The ids of start, end, padding and unknown, by config.json or else by their texts."""
    config = read_json(model_dir / "config.json")
    texts = read_json_if_there(model_dir / "tokenizer_config.json")
    found: dict[str, bytes] = {}
    for name, theirs in NAMED_TOKENS.items():
        number = config.get(f"{name}_token_id", vocab.get(str(texts.get(f"{name}_token"))))
        if isinstance(number, list):
            number = next(iter(items(cast(object, number))), None)
        if isinstance(number, int):
            found[f"tokenizer.ggml.{theirs}_token_id"] = _u32(number)
    return found


def _pre_tokenizer(tokenizer: Mapping[str, object], model_dir: Path) -> str:
    """What llama.cpp calls the way in which the text is cut before the merges."""
    step = mapping(tokenizer.get("pre_tokenizer"))
    steps = items(step.get("pretokenizers")) if step.get("type") == "Sequence" else [step]
    shapes = [_shape(mapping(one)) for one in steps]
    for name, before in PRE_TOKENIZERS.items():
        if shapes == [_shape(one) for one in [*before, _BYTE_LEVEL]]:
            return name
    raise ModelError(
        f"{model_dir / 'tokenizer.json'} has a pre-tokenizer that can't be exported",
        hint=f"Known ones: {', '.join(sorted(PRE_TOKENIZERS))}.",
    )


def _shape(step: Mapping[str, object]) -> tuple[object, ...]:
    return step.get("type"), step.get("individual_digits"), step.get("add_prefix_space")


def _head(metadata: Mapping[str, bytes], tensors: Sequence[_Tensor]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + value
    offset = 0
    for tensor in tensors:
        sizes = tensor.source.shape[::-1]
        head += _string(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", 0, offset)
        offset += tensor.nbytes + -tensor.nbytes % _ALIGNMENT
    return head + bytes(-len(head) % _ALIGNMENT)


def _string(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text(value: str) -> bytes:
    return struct.pack("<I", 8) + _string(value)


def _u32(value: float) -> bytes:
    return struct.pack("<II", 4, int(value))


def _f32(value: float) -> bytes:
    return struct.pack("<If", 6, value)


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(values)
