"""The format of a block file: a safetensors file whose header says exactly what block it is.

Knows nothing about file systems, budgets or what the sections mean; see docs/format.md.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

import xxhash

from omlx.storage.layout import HASH_BYTES, MAX_COUNT, BlockHash, BlockKey, BlockKind, RootHash

FORMAT = "1"
ALIGNMENT = 4096
MAX_HEADER_BYTES = 1 << 20
CHECKSUM_BYTES = 16
TOKENS = "tokens"

_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_MAX_DIMENSIONS = 8
_MAX_BYTES = 1 << 48
_SECTION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_COUNT = re.compile(r"[1-9][0-9]{0,4}")
_HEX = re.compile(r"[0-9a-f]*")
_CHECKSUM_KEY = "xxh3."
_METADATA = "__metadata__"
_KIND = "kind"


class BadReason(Enum):
    """Why a file in the store can't be used."""

    EMPTY = "empty"
    TRUNCATED = "truncated"
    HEADER = "header"
    FORMAT = "format"
    FOREIGN = "foreign"
    CHECKSUM = "checksum"
    TOKENS = "tokens"
    UNREADABLE = "unreadable"


class BadBlock(Exception):
    """A block file that is not what it should be; never leaves the storage package."""

    def __init__(self, reason: BadReason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SectionSpec:
    """One array of a block: its name, its safetensors dtype and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes the section takes."""
        return _DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StoredSection:
    """A section in a file: `start` and `end` count from the beginning of the data."""

    spec: SectionSpec
    start: int
    end: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """What a block file says about itself; `tokens` is its first section, `sections` the others."""

    root: RootHash
    key: BlockKey
    tokens: StoredSection
    sections: tuple[StoredSection, ...]
    data_start: int


def checksum(data: memoryview | bytearray | bytes) -> bytes:
    """XXH3-128 of flat bytes; releases the interpreter for long ones."""
    return xxhash.xxh3_128_digest(data)


def new_checksum() -> xxhash.xxh3_128:
    """What takes the same of bytes that come in pieces, by `update` and `digest`."""
    return xxhash.xxh3_128()


def tokens_spec(count: int) -> SectionSpec:
    """The section that holds the token ids of a block of `count` tokens."""
    return SectionSpec(TOKENS, "U32", (count,))


def encode_header(
    root: RootHash, key: BlockKey, specs: Sequence[SectionSpec], checksums: Sequence[bytes]
) -> bytes:
    """The bytes of a block file up to its data; the first of `specs` is the tokens'.

    Its length does not depend on the checksums' values. ValueError where it would be too long.
    """
    assert specs[0] == tokens_spec(key.count), "the first section holds the tokens"
    assert len({spec.name for spec in specs}) == len(specs), "a section name is used twice"
    metadata = {
        "format": FORMAT,
        "root": root.hex(),
        "parent": key.parent.hex(),
        "name": key.name.hex(),
        "count": str(key.count),
    }
    if key.kind is not BlockKind.BLOCK:
        metadata[_KIND] = key.kind.value
    tree: dict[str, object] = {_METADATA: metadata}
    offset = 0
    for spec, digest in zip(specs, checksums, strict=True):
        assert _SECTION_NAME.fullmatch(spec.name), spec.name
        end = offset + spec.nbytes
        tree[spec.name] = {
            "dtype": spec.dtype,
            "shape": spec.shape,
            "data_offsets": (offset, end),
        }
        metadata[_CHECKSUM_KEY + spec.name] = digest.hex()
        offset = end
    text = json.dumps(tree, separators=(",", ":")).encode()
    padded = -(8 + len(text)) % ALIGNMENT + len(text)
    if padded > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {padded} bytes is too long")
    return padded.to_bytes(8, "little") + text.ljust(padded, b" ")


def file_bytes(root: RootHash, key: BlockKey, specs: Sequence[SectionSpec]) -> int:
    """How long the file of such a block is; the first of `specs` is the tokens'."""
    empty = bytes(CHECKSUM_BYTES)
    header = encode_header(root, key, specs, [empty] * len(specs))
    return len(header) + sum(spec.nbytes for spec in specs)


def min_file_bytes(count: int) -> int:
    """What a file of `count` tokens can't be shorter than."""
    return ALIGNMENT + tokens_spec(count).nbytes


def header_bytes(prefix: bytes, file_size: int) -> int:
    """Where the data starts, from a file's first eight bytes; BadBlock."""
    if file_size == 0:
        raise BadBlock(BadReason.EMPTY)
    if len(prefix) < 8 or file_size < 8:
        raise BadBlock(BadReason.TRUNCATED, "shorter than its length field")
    length = int.from_bytes(prefix[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise BadBlock(BadReason.HEADER, "header length out of range")
    if 8 + length > file_size:
        raise BadBlock(BadReason.TRUNCATED, "shorter than its header")
    return 8 + length


def decode_header(data: bytes, file_size: int) -> Header:
    """The header of a file of `file_size` bytes, every field checked; BadBlock.

    `data` must reach to `header_bytes(data, file_size)`; what follows is not looked at.
    """
    data_start = header_bytes(data[:8], file_size)
    if len(data) < data_start:
        raise BadBlock(BadReason.TRUNCATED, "shorter than its header")
    tree = _parse(data[8:data_start])
    metadata = _metadata(tree.pop(_METADATA, None))
    if data_start % ALIGNMENT:
        raise BadBlock(BadReason.HEADER, "data not aligned")
    root = RootHash(_hex(metadata.pop("root", ""), HASH_BYTES))
    parent = BlockHash(_hex(metadata.pop("parent", ""), HASH_BYTES))
    name = BlockHash(_hex(metadata.pop("name", ""), HASH_BYTES))
    count = metadata.pop("count", "")
    if not _COUNT.fullmatch(count) or int(count) > MAX_COUNT:
        raise BadBlock(BadReason.HEADER, "bad count")
    kind = _kind(metadata.pop(_KIND, None))
    sections = _sections(tree, metadata)
    key = BlockKey(parent, name, int(count), kind)
    if not sections or sections[0].spec != tokens_spec(key.count):
        raise BadBlock(BadReason.HEADER, "the tokens are not the first section")
    missing = data_start + sections[-1].end - file_size
    if missing:
        reason = BadReason.TRUNCATED if missing > 0 else BadReason.HEADER
        raise BadBlock(reason, "length differs from what the header says")
    return Header(root, key, sections[0], tuple(sections[1:]), data_start)


def _parse(raw: bytes) -> dict[str, object]:
    try:
        text = raw.decode("utf-8").rstrip(" ")
        if not text.startswith("{"):
            raise ValueError("not an object")
        tree: object = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_refuse,
            parse_constant=_refuse,
            parse_int=_integer,
        )
    except (ValueError, RecursionError) as error:
        raise BadBlock(BadReason.HEADER, "not strict JSON") from error
    assert isinstance(tree, dict)  # it starts with a brace
    return cast(dict[str, object], tree)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is used twice")
    return made


def _refuse(text: str) -> object:
    raise ValueError(f"{text[:20]} is no whole number")


def _integer(text: str) -> int:
    if len(text) > 15 or text.startswith("-"):
        raise ValueError("number out of range")
    return int(text)


def _metadata(found: object) -> dict[str, str]:
    """The metadata, which must be strings and of this format."""
    if found is None:
        raise BadBlock(BadReason.FOREIGN, "no metadata")
    if not isinstance(found, dict):
        raise BadBlock(BadReason.HEADER, "metadata is no object")
    metadata: dict[str, str] = {}
    for key, value in cast(dict[str, object], found).items():
        if not isinstance(value, str):
            raise BadBlock(BadReason.HEADER, "metadata is not all strings")
        metadata[key] = value
    version = metadata.pop("format", None)
    if version is None or "root" not in metadata:
        raise BadBlock(BadReason.FOREIGN, "not a block")
    if version != FORMAT:
        raise BadBlock(BadReason.FORMAT, f"version {version[:20]}")
    return metadata


def _kind(text: str | None) -> BlockKind:
    """The kind of a file, which only a state gives."""
    if text is None:
        return BlockKind.BLOCK
    if text != BlockKind.STATE.value:
        raise BadBlock(BadReason.HEADER, "unknown kind")
    return BlockKind.STATE


def _hex(text: str, num_bytes: int) -> bytes:
    if len(text) != 2 * num_bytes or not _HEX.fullmatch(text):
        raise BadBlock(BadReason.HEADER, "bad hash or checksum")
    return bytes.fromhex(text)


def _sections(tree: dict[str, object], metadata: dict[str, str]) -> list[StoredSection]:
    """All sections in the order of their data, without gap or overlap, each with its checksum."""
    if len(metadata) != len(tree):
        raise BadBlock(BadReason.HEADER, "metadata does not match the sections")
    sections: list[StoredSection] = []
    for name, value in tree.items():
        spec, start, end = _section(name, value)
        digest = _hex(metadata.get(_CHECKSUM_KEY + name, ""), CHECKSUM_BYTES)
        sections.append(StoredSection(spec, start, end, digest))
    sections.sort(key=lambda section: (section.start, section.end))
    offset = 0
    for section in sections:
        if section.start != offset:
            raise BadBlock(BadReason.HEADER, "sections leave a gap or overlap")
        offset = section.end
    return sections


def _section(name: str, found: object) -> tuple[SectionSpec, int, int]:
    if not _SECTION_NAME.fullmatch(name) or not isinstance(found, dict):
        raise BadBlock(BadReason.HEADER, "bad section")
    fields = cast(dict[str, object], found)
    if fields.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadBlock(BadReason.HEADER, "bad section")
    dtype = fields["dtype"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        raise BadBlock(BadReason.HEADER, "unknown dtype")
    shape = _integers(fields["shape"])
    offsets = _integers(fields["data_offsets"])
    if len(shape) > _MAX_DIMENSIONS or len(offsets) != 2:
        raise BadBlock(BadReason.HEADER, "bad shape or offsets")
    spec = SectionSpec(name, dtype, shape)
    start, end = offsets
    if not 0 <= start <= end <= _MAX_BYTES or end - start != spec.nbytes:
        raise BadBlock(BadReason.HEADER, "offsets do not match the shape")
    return spec, start, end


def _integers(found: object) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise BadBlock(BadReason.HEADER, "not a list")
    numbers = cast(list[object], found)
    if not all(type(number) is int for number in numbers):  # a bool is an int, but not here
        raise BadBlock(BadReason.HEADER, "not whole numbers")
    return tuple(cast(list[int], numbers))
