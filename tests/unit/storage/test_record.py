"""The block format: exact bytes, the safetensors library as a witness, hostile headers."""

import hashlib
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.storage.blockfile import encode_block
from omlx.storage.layout import MAX_COUNT, BlockHash, BlockKey, BlockKind
from omlx.storage.record import (
    ALIGNMENT,
    MAX_HEADER_BYTES,
    BadBlock,
    BadReason,
    Header,
    SectionSpec,
    decode_header,
    encode_header,
    file_bytes,
    min_file_bytes,
    tokens_spec,
)
from tests.fakes.blocks import ROOT, Block, make_block, make_state

BLOCK = make_block(ROOT, 1)
GOLDEN_BLOCK = "146c42239322f28a8a70474489baf4e5cc328a597937a1cb36891e6450974aa3"
GOLDEN_STATE = "d062a10dbc54951bcfdd09d68159176b7a1d387b7621fe9587cf6c99242bae05"


def encoded(block: Block) -> bytes:
    return b"".join(encode_block(ROOT, block.key, block.tokens, block.sections))


def framed(text: bytes) -> bytes:
    """A header of this text, padded as the format wants it."""
    padded = -(8 + len(text)) % ALIGNMENT + len(text)
    return padded.to_bytes(8, "little") + text.ljust(padded)


def reason_of(data: bytes, file_size: int | None = None) -> BadReason:
    with pytest.raises(BadBlock) as caught:
        decode_header(data, len(data) if file_size is None else file_size)
    return caught.value.reason


def test_the_header_is_exactly_this_text() -> None:
    key = BlockKey(BlockHash(b"\x01" * 32), BlockHash(b"\x02" * 32), 3)
    specs = [tokens_spec(3), SectionSpec("0.k", "BF16", (2, 3, 4))]
    header = encode_header(ROOT, key, specs, [b"\xaa" * 16, b"\xbb" * 16])
    assert len(header) == ALIGNMENT and header[:8] == (ALIGNMENT - 8).to_bytes(8, "little")
    assert header[8:].rstrip(b" ").decode() == (
        '{"__metadata__":{"format":"1","root":"' + ROOT.hex() + '","parent":"' + "01" * 32 + '",'
        '"name":"' + "02" * 32 + '","count":"3",'
        '"xxh3.tokens":"' + "aa" * 16 + '","xxh3.0.k":"' + "bb" * 16 + '"},'
        '"tokens":{"dtype":"U32","shape":[3],"data_offsets":[0,12]},'
        '"0.k":{"dtype":"BF16","shape":[2,3,4],"data_offsets":[12,60]}}'
    )


def test_the_header_of_a_state_says_so() -> None:
    key = BlockKey(BlockHash(b"\x01" * 32), BlockHash(b"\x02" * 32), 3, BlockKind.STATE)
    specs = [tokens_spec(3), SectionSpec("0.s", "F32", (2, 2))]
    header = encode_header(ROOT, key, specs, [b"\xaa" * 16, b"\xbb" * 16])
    assert header[8:].rstrip(b" ").decode() == (
        '{"__metadata__":{"format":"1","root":"' + ROOT.hex() + '","parent":"' + "01" * 32 + '",'
        '"name":"' + "02" * 32 + '","count":"3","kind":"state",'
        '"xxh3.tokens":"' + "aa" * 16 + '","xxh3.0.s":"' + "bb" * 16 + '"},'
        '"tokens":{"dtype":"U32","shape":[3],"data_offsets":[0,12]},'
        '"0.s":{"dtype":"F32","shape":[2,2],"data_offsets":[12,28]}}'
    )
    assert decode_header(header, len(header) + 28).key == key


def test_the_bytes_of_a_block_and_a_state_never_change() -> None:
    """Who changes this has made a new format."""
    digests = [hashlib.sha256(encoded(each)).hexdigest() for each in (BLOCK, make_state(BLOCK))]
    assert digests == [GOLDEN_BLOCK, GOLDEN_STATE]


def test_the_safetensors_library_reads_a_block(tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    path.write_bytes(encoded(BLOCK))
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()
        assert (metadata["format"], metadata["count"]) == ("1", "4")
        assert metadata["name"] == BLOCK.key.name.hex()
        assert metadata["parent"] == metadata["root"] == ROOT.hex()
        assert file.get_tensor("tokens").tobytes() == BLOCK.tokens
        assert file.get_tensor("0.v").tobytes() == BLOCK.data[1]
        assert file.get_tensor("0.v").shape == (1, 4, 8)
        assert file.get_slice("0.k").get_dtype() == "BF16"
        assert metadata["xxh3.0.v"] == xxhash.xxh3_128_hexdigest(BLOCK.data[1])
        assert set(file.keys()) == {"tokens", "0.k", "0.v"}


DTYPES = "BOOL U8 I8 F8_E5M2 F8_E4M3 U16 I16 F16 BF16 U32 I32 F32 U64 I64 F64 C64"


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_the_library_agrees_on_the_size_of_every_dtype(tmp_path: Path, dtype: str) -> None:
    spec = SectionSpec("x", dtype, (3, 5))
    data = bytes(spec.nbytes)
    path = tmp_path / "block.safetensors"
    path.write_bytes(
        b"".join(encode_block(ROOT, BLOCK.key, BLOCK.tokens, [(spec, memoryview(data))]))
    )
    with safetensors.safe_open(path, "numpy") as file:
        assert file.get_slice("x").get_shape() == [3, 5]


def test_a_file_of_the_library_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}):
        safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, path, metadata=metadata)
        assert reason_of(path.read_bytes()) is BadReason.FOREIGN


specs = st.builds(
    SectionSpec,
    st.from_regex(r"[A-Za-z0-9_.]{0,8}[a-z]", fullmatch=True).filter(
        lambda name: name != "tokens" and name[0] != "."
    ),
    st.sampled_from(["BOOL", "BF16", "F32", "C64"]),
    st.lists(st.integers(0, 6), max_size=4).map(tuple),
)


@given(
    st.lists(specs, max_size=5, unique_by=lambda spec: spec.name),
    st.integers(1, MAX_COUNT),
    st.binary(min_size=32, max_size=32),
    st.sampled_from(BlockKind),
)
def test_what_is_encoded_is_decoded(
    sections: list[SectionSpec], count: int, name: bytes, kind: BlockKind
) -> None:
    key = BlockKey(BlockHash(ROOT), BlockHash(name), count, kind)
    all_specs = [tokens_spec(count), *sections]
    digests = [bytes([i]) * 16 for i in range(len(all_specs))]
    data = encode_header(ROOT, key, all_specs, digests)
    size = file_bytes(ROOT, key, all_specs)
    header = decode_header(data, size)
    assert (header.root, header.key, header.data_start) == (ROOT, key, len(data))
    stored = [header.tokens, *header.sections]
    assert [section.spec for section in stored] == all_specs
    assert [section.checksum for section in stored] == digests
    assert stored[-1].end + header.data_start == size >= min_file_bytes(count)
    assert reason_of(data, size + 1) is BadReason.HEADER
    assert reason_of(data, size - 1) is BadReason.TRUNCATED


def changed(change: Callable[[Any], None]) -> bytes:
    """The sample block with its header's tree changed."""
    whole = encoded(BLOCK)
    length = int.from_bytes(whole[:8], "little")
    tree = json.loads(whole[8 : 8 + length])
    change(tree)
    return framed(json.dumps(tree).encode()) + whole[8 + length :]


def setter(section: str, field: str, value: object) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        tree[section][field] = value

    return change


def remover(section: str, field: str) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        del tree[section][field]

    return change


HOSTILE = [
    setter("0.k", "data_offsets", [-16, 144]),
    setter("0.k", "data_offsets", [144, 16]),
    setter("0.k", "data_offsets", [0, 128]),  # overlaps the tokens
    setter("0.k", "data_offsets", [20, 148]),  # leaves a gap
    setter("0.k", "data_offsets", [16, 144, 200]),
    setter("0.k", "data_offsets", [16]),
    setter("0.k", "data_offsets", [16.0, 144.0]),
    setter("0.k", "data_offsets", ["16", "144"]),
    setter("0.k", "data_offsets", {"0": 16}),
    setter("0.k", "data_offsets", None),
    setter("0.k", "data_offsets", [16, 10**40]),
    setter("0.k", "data_offsets", [16, math.nan]),
    setter("0.k", "data_offsets", [16, math.inf]),
    setter("0.k", "shape", [2, 4, 9]),
    setter("0.k", "shape", [-2, -4, 8]),
    setter("0.k", "shape", [True, 8, 8]),
    setter("0.k", "shape", [64] + [1] * 20),
    setter("0.k", "shape", [10**14] * 8),
    setter("0.k", "shape", "2,4,8"),
    setter("0.k", "dtype", "BF17"),
    setter("0.k", "dtype", ["BF16"]),
    setter("0.k", "dtype", None),
    setter("0.k", "strides", [1]),
    remover("0.k", "dtype"),
    remover("0.k", "shape"),
    remover("0.k", "data_offsets"),
    setter("tokens", "dtype", "I32"),
    setter("tokens", "shape", [2, 2]),
    setter("__metadata__", "count", "5"),
    setter("__metadata__", "count", "0"),
    setter("__metadata__", "count", "04"),
    setter("__metadata__", "count", "99999"),
    setter("__metadata__", "count", 4),
    setter("__metadata__", "root", "00"),
    setter("__metadata__", "root", "G" * 64),
    setter("__metadata__", "parent", "A" * 64),  # upper case is another spelling
    setter("__metadata__", "name", " " * 64),
    setter("__metadata__", "xxh3.0.k", "0" * 31),
    setter("__metadata__", "xxh3.9.k", "0" * 32),
    setter("__metadata__", "extra", "1"),
    setter("__metadata__", "kind", "block"),  # a block has no kind
    setter("__metadata__", "kind", "State"),
    setter("__metadata__", "kind", ""),
    remover("__metadata__", "name"),
    remover("__metadata__", "parent"),
    remover("__metadata__", "count"),
    remover("__metadata__", "xxh3.0.k"),
    lambda tree: tree.update(__metadata__=[]),
    lambda tree: tree.update({"0.k": []}),
    lambda tree: tree.update({"../x": tree.pop("0.k")}),
    lambda tree: tree.update({"\ud800": tree.pop("0.k")}),
    lambda tree: tree.pop("0.v"),
    lambda tree: tree.pop("tokens"),
]


@pytest.mark.parametrize("idx", range(len(HOSTILE)))
def test_a_header_with_one_wrong_field_is_refused(idx: int) -> None:
    assert reason_of(changed(HOSTILE[idx])) is BadReason.HEADER


def test_the_unchanged_header_is_accepted() -> None:
    data = changed(lambda tree: None)
    assert decode_header(data, len(data)).key == BLOCK.key


def test_other_versions_and_other_files_have_reasons_of_their_own() -> None:
    assert reason_of(changed(setter("__metadata__", "format", "2"))) is BadReason.FORMAT
    assert reason_of(changed(remover("__metadata__", "format"))) is BadReason.FOREIGN
    assert reason_of(changed(remover("__metadata__", "root"))) is BadReason.FOREIGN
    assert reason_of(changed(lambda tree: tree.pop("__metadata__"))) is BadReason.FOREIGN


@pytest.mark.parametrize(
    "text",
    [
        b"{}"[:1],
        b"[]",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"{}x",
        b"  {}",
        b"{'a':1}",
        b'{"a":1,"a":1}',
        b'{"__metadata__":{"format":"1","format":"1"}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"[" * 900_000,
        b'{"a":' * 180_000,
        b'{"a":' + b"9" * 900_000 + b"}",
    ],
    ids=range(15),
)
def test_what_is_not_strict_json_is_refused(text: bytes) -> None:
    assert reason_of(framed(text)) is BadReason.HEADER


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        (0, BadReason.HEADER),
        (1, BadReason.HEADER),
        (MAX_HEADER_BYTES + 1, BadReason.HEADER),
        (1 << 40, BadReason.HEADER),
        ((1 << 64) - 1, BadReason.HEADER),
        (8192, BadReason.TRUNCATED),
    ],
)
def test_absurd_header_lengths_cost_no_memory(length: int, reason: BadReason) -> None:
    data = length.to_bytes(8, "little") + b"{}"
    tracemalloc.start()
    assert reason_of(data, 4096) is reason
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_full_header_of_rubbish_costs_bounded_memory() -> None:
    data = framed(b'{"a":[' + b"[]," * 150_000 + b"0]}")
    tracemalloc.start()
    reason_of(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_short_and_empty_files() -> None:
    assert reason_of(b"") is BadReason.EMPTY
    assert reason_of(b"1234567") is BadReason.TRUNCATED
    whole = encoded(BLOCK)
    assert reason_of(whole[:100], len(whole)) is BadReason.TRUNCATED
    unaligned = (2000).to_bytes(8, "little") + whole[8 : 8 + 2000] + whole[ALIGNMENT:]
    assert reason_of(unaligned) is BadReason.HEADER


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_header_is_refused_or_still_well_formed(data: st.DataObject) -> None:
    whole = bytearray(encoded(BLOCK))
    text_end = whole.rindex(b"}", 0, ALIGNMENT) + 1
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, text_end - 1))] = data.draw(st.integers(0, 255))
    try:
        header = decode_header(bytes(whole), len(whole))
    except BadBlock:
        return
    check_well_formed(header, len(whole))


@given(st.binary(max_size=300))
def test_rubbish_is_refused(body: bytes) -> None:
    assert reason_of(framed(b"{" + body)) in (BadReason.HEADER, BadReason.FOREIGN)
    if int.from_bytes(body[:8], "little"):
        assert reason_of(body) is not BadReason.EMPTY


def check_well_formed(header: Header, file_size: int) -> None:
    """What a reader may rely on."""
    assert len(header.root) == len(header.key.parent) == len(header.key.name) == 32
    offset = 0
    for section in (header.tokens, *header.sections):
        assert section.start == offset and section.end - offset == section.spec.nbytes
        assert len(section.checksum) == 16
        offset = section.end
    assert header.data_start + offset == file_size
    assert header.tokens.spec == tokens_spec(header.key.count)


def test_too_many_sections_are_refused_when_written() -> None:
    many = [tokens_spec(4), *(SectionSpec(f"{i}.k", "U8", (1,)) for i in range(12_000))]
    with pytest.raises(ValueError, match="too long"):
        encode_header(ROOT, BLOCK.key, many, [bytes(16)] * len(many))


@pytest.mark.parametrize("name", ["tokens", "0.k"])
def test_a_section_name_is_used_once(name: str) -> None:
    sections = [tokens_spec(4), SectionSpec("0.k", "U8", (1,)), SectionSpec(name, "U8", (1,))]
    with pytest.raises(AssertionError):
        encode_header(ROOT, BLOCK.key, sections, [bytes(16)] * 3)
