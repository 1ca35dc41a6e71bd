"""Writes small GGUF files, right ones and wrong ones, and unpacks their blocks one value at a time.

Knows nothing about our reader.
"""

import json
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.unit.models import tiny

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20)}
TYPES |= {"Q8_0": (8, 32, 34), "BF16": (30, 1, 2), "Q8_K": (15, 256, 292)}
WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, LAYERS = 64, 96, 4, 2, 16, 2


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type number."""

    kind: int
    data: bytes


def u32(value: int) -> Typed:
    """An unsigned 32-bit number."""
    return Typed(4, struct.pack("<I", value))


def f32(value: float) -> Typed:
    """A 32-bit float."""
    return Typed(6, struct.pack("<f", value))


def text(value: str | bytes) -> Typed:
    """A text."""
    raw = value.encode() if isinstance(value, str) else value
    return Typed(8, struct.pack("<Q", len(raw)) + raw)


def array(items: Sequence[Typed], kind: int | None = None) -> Typed:
    """An array of values of one type."""
    item_kind = items[0].kind if kind is None else kind
    head = struct.pack("<IQ", item_kind, len(items))
    return Typed(9, head + b"".join(item.data for item in items))


@dataclass
class Tensor:
    """One tensor as the file tells it; `offset` and `kind` may lie."""

    name: str
    shape: tuple[int, ...]
    quant: str
    data: bytes
    offset: int | None = None


def tensor(name: str, shape: tuple[int, ...], quant: str, seed: int = 0) -> Tensor:
    """A tensor of random blocks with sane scales."""
    count = 1
    for size in shape:
        count *= size
    return Tensor(name, shape, quant, _data(f"{name}{seed}", count, quant))


@lru_cache
def _data(seed: str, count: int, quant: str) -> bytes:
    rng = random.Random(seed)
    _, block, block_bytes = TYPES[quant]
    return b"".join(_block(quant, block_bytes, rng) for _ in range(count // block))


def _block(quant: str, block_bytes: int, rng: random.Random) -> bytes:
    if quant == "F32":
        return struct.pack("<f", rng.gauss(0, 1))
    if quant == "F16":
        return struct.pack("<e", rng.gauss(0, 1))
    if quant == "BF16":
        return struct.pack("<f", rng.gauss(0, 1))[2:]
    num_halves = 2 if quant == "Q4_1" else 1
    halves = b"".join(struct.pack("<e", rng.gauss(0, 0.1)) for _ in range(num_halves))
    return halves + rng.randbytes(block_bytes - len(halves))


def unpack(quant: str, data: bytes) -> list[float]:
    """Values of blocks, one at a time, as ggml defines them (exact, not rounded to float32)."""
    if quant in ("F32", "F16"):
        return [value for (value,) in struct.iter_unpack("<f" if quant == "F32" else "<e", data)]
    if quant == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    values: list[float] = []
    size = TYPES[quant][2]
    for start in range(0, len(data), size):
        block = data[start : start + size]
        scale = struct.unpack("<e", block[:2])[0]
        if quant == "Q8_0":
            values += [scale * code for code in struct.unpack("<32b", block[2:])]
            continue
        codes = block[-16:]
        nibbles = [code & 15 for code in codes] + [code >> 4 for code in codes]
        if quant == "Q4_0":
            values += [scale * (code - 8) for code in nibbles]
        else:
            low = struct.unpack("<e", block[2:4])[0]
            values += [scale * code + low for code in nibbles]
    return values


def write_gguf(
    path: Path,
    metadata: Mapping[str, Typed],
    tensors: Sequence[Tensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """Write a file, tensors one after another unless they name their own offset."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key).data + struct.pack("<I", value.kind) + value.data
    body = b""
    for item in tensors:
        offset = len(body) if item.offset is None else item.offset
        dims = item.shape[::-1]
        head += text(item.name).data + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", TYPES[item.quant][0], offset)
        body += item.data + bytes(-len(item.data) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + body)
    return path


def llama_metadata() -> dict[str, Typed]:
    """Metadata of a tiny llama with the byte-level tokenizer of `tiny`."""
    model = json.loads(tiny.byte_level().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [3 if token in tiny.SPECIAL else 1 for token in tokens]
    types[-1] = 4
    return {
        "general.architecture": text("llama"),
        "llama.block_count": u32(LAYERS),
        "llama.context_length": u32(128),
        "llama.embedding_length": u32(WIDTH),
        "llama.feed_forward_length": u32(HIDDEN),
        "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": f32(1e-5),
        "llama.rope.dimension_count": u32(HEAD),
        "llama.rope.freq_base": f32(10_000.0),
        "llama.vocab_size": u32(len(tokens)),
        "tokenizer.ggml.model": text("gpt2"),
        "tokenizer.ggml.pre": text("smollm"),
        "tokenizer.ggml.tokens": array([text(token) for token in tokens]),
        "tokenizer.ggml.token_type": array([Typed(5, struct.pack("<i", n)) for n in types]),
        "tokenizer.ggml.merges": array([text(" ".join(pair)) for pair in model["merges"]]),
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
        "tokenizer.chat_template": text("{{ messages[0].content }}é"),
    }


def num_tokens() -> int:
    """How many tokens the tiny llama has."""
    return len(json.loads(tiny.byte_level().to_str())["model"]["vocab"])


def llama_tensors(matrix: str = "Q4_1", *, embedding: str = "Q8_0") -> list[Tensor]:
    """Tensors of the tiny llama, norms in float32."""
    tensors = [
        tensor("token_embd.weight", (num_tokens(), WIDTH), embedding),
        tensor("output_norm.weight", (WIDTH,), "F32"),
    ]
    for layer in range(LAYERS):
        shapes = {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * HEAD, WIDTH),
            "attn_k": (KV_HEADS * HEAD, WIDTH),
            "attn_v": (KV_HEADS * HEAD, WIDTH),
            "attn_output": (WIDTH, HEADS * HEAD),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        for name, shape in shapes.items():
            quant = "F32" if len(shape) == 1 else matrix
            tensors.append(tensor(f"blk.{layer}.{name}.weight", shape, quant))
    return tensors


def llama(path: Path, matrix: str = "Q4_1", *, embedding: str = "Q8_0", version: int = 3) -> Path:
    """Write the tiny llama."""
    tensors = llama_tensors(matrix, embedding=embedding)
    return write_gguf(path, llama_metadata(), tensors, version=version)
