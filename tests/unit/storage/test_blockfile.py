"""One block file: written whole or not at all, believed only after every check."""

import errno
import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.storage.blockfile import (
    Wanted,
    encode_block,
    read_block,
    read_tokens,
    verify_block,
    write_file,
)
from omlx.storage.fs import FileStat, FileSystem, RealFileSystem
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, BlockName, block_name, root_name
from omlx.storage.record import ALIGNMENT, BadBlock, BadReason, SectionSpec
from tests.fakes.blocks import OTHER_ROOT, ROOT, Block, Clock, make_block
from tests.fakes.fs import FaultFileSystem, FaultMode, MemoryFileSystem

BLOCK = make_block(ROOT, 1)
PATH = Path("/d/block")
TEMP = Path("/d/.tmp-1-1")
WHOLE = b"".join(encode_block(ROOT, BLOCK.key, BLOCK.tokens, BLOCK.sections))
WANTED = Wanted(ROOT, BLOCK.key, BLOCK.tokens)
NEW = SectionSpec("9.k", "U8", (1,))
LAST = (SectionSpec("1.k", "F32", (5000,)), random.Random(3).randbytes(20_000))
WIDE = Block(BLOCK.key, BLOCK.tokens, (*BLOCK.specs, LAST[0]), (*BLOCK.data, LAST[1]))
WIDE_FILE = b"".join(encode_block(ROOT, WIDE.key, WIDE.tokens, WIDE.sections))


def holding(data: bytes) -> MemoryFileSystem:
    fs = MemoryFileSystem(Clock())
    fs.write(PATH, data)
    return fs


def read(fs: MemoryFileSystem, wanted: Wanted = WANTED, block: Block = BLOCK) -> list[bytes]:
    buffers = [bytearray(spec.nbytes) for spec in block.specs]
    views = [(s, memoryview(b)) for s, b in zip(block.specs, buffers, strict=True)]
    assert read_block(fs, PATH, wanted, views) == len(WHOLE)
    return [bytes(buffer) for buffer in buffers]


def reason_of(data: bytes, wanted: Wanted = WANTED, block: Block = BLOCK) -> BadReason:
    fs = holding(data)
    with pytest.raises(BadBlock) as caught:
        read(fs, wanted, block)
    assert not fs.open_files
    return caught.value.reason


def test_a_block_is_read_as_it_was_written() -> None:
    fs = holding(b"")
    fs.unlink(PATH)
    write_file(fs, TEMP, PATH, encode_block(ROOT, BLOCK.key, BLOCK.tokens, BLOCK.sections))
    assert fs.files() == [PATH] and fs.stat(PATH).mode == 0o600
    assert fs.content(PATH) == WHOLE
    assert read(fs) == list(BLOCK.data)
    assert not fs.open_files


def test_every_length_but_the_right_one_is_refused() -> None:
    assert reason_of(b"") is BadReason.EMPTY
    for length in (1, 7, 8, 9, 100, 4095, 4096, 4097, 4100, len(WHOLE) - 1):
        assert reason_of(WHOLE[:length]) is BadReason.TRUNCATED
    assert reason_of(WHOLE + b"\0") is BadReason.HEADER


def test_every_flipped_bit_is_noticed() -> None:
    text_end = WHOLE.rindex(b"}", 0, ALIGNMENT) + 1
    for idx in (*range(8, text_end), *range(ALIGNMENT, len(WHOLE))):
        damaged = bytearray(WHOLE)
        damaged[idx] ^= 1 << idx % 8
        reason = reason_of(bytes(damaged))
        if idx >= ALIGNMENT:
            assert reason is BadReason.CHECKSUM
        else:
            assert reason is not BadReason.UNREADABLE


def test_zeros_after_a_power_cut_are_refused() -> None:
    assert reason_of(bytes(len(WHOLE))) is BadReason.HEADER
    assert reason_of(WHOLE[:ALIGNMENT] + bytes(len(WHOLE) - ALIGNMENT)) is BadReason.CHECKSUM


def test_another_block_is_foreign() -> None:
    key = BLOCK.key
    other = BlockHash(bytes(32))
    for wanted in (
        Wanted(OTHER_ROOT, key, BLOCK.tokens),
        Wanted(ROOT, BlockKey(other, key.name, key.count), BLOCK.tokens),
        Wanted(ROOT, BlockKey(key.parent, other, key.count), BLOCK.tokens),
    ):
        assert reason_of(WHOLE, wanted) is BadReason.FOREIGN


def test_other_sections_are_foreign() -> None:
    specs = (BLOCK.specs[0], SectionSpec("0.v", "I32", BLOCK.specs[1].shape))
    other = Block(BLOCK.key, BLOCK.tokens, specs, BLOCK.data)
    assert reason_of(WHOLE, WANTED, other) is BadReason.FOREIGN
    more = Block(BLOCK.key, BLOCK.tokens, (*BLOCK.specs, NEW), (*BLOCK.data, b"x"))
    assert reason_of(WHOLE, WANTED, more) is BadReason.FOREIGN


def read_some(fs: FileSystem, idxs: Sequence[int]) -> tuple[int, list[bytes]]:
    """Read these sections of three: bytes read, and their content."""
    buffers = [bytearray(WIDE.specs[idx].nbytes) for idx in idxs]
    views = [(WIDE.specs[idx], memoryview(b)) for idx, b in zip(idxs, buffers, strict=True)]
    num_bytes = read_block(fs, PATH, WANTED, views)
    return num_bytes, [bytes(buffer) for buffer in buffers]


SUBSETS = [idxs for n in range(4) for idxs in itertools.permutations(range(3), n)]


@pytest.mark.parametrize("idxs", SUBSETS, ids=str)
def test_any_sections_are_read_in_any_order_and_only_those(idxs: tuple[int, ...]) -> None:
    fs = holding(WIDE_FILE)
    size = ALIGNMENT + len(WIDE.tokens) + sum(WIDE.specs[idx].nbytes for idx in idxs)
    assert read_some(fs, idxs) == (size, [WIDE.data[idx] for idx in idxs])
    starts = [WIDE_FILE.index(data, ALIGNMENT) for data in WIDE.data]
    for idx, start in enumerate(starts):
        fs.content(PATH)[:] = WIDE_FILE
        fs.content(PATH)[start] ^= 1
        if idx not in idxs:
            assert read_some(fs, idxs)[1] == [WIDE.data[idx] for idx in idxs]
            continue
        with pytest.raises(BadBlock) as caught:
            read_some(fs, idxs)
        assert caught.value.reason is BadReason.CHECKSUM
    fs.content(PATH)[:] = WIDE_FILE[:-1]
    with pytest.raises(BadBlock) as shorter:
        read_some(fs, idxs)
    assert shorter.value.reason is BadReason.TRUNCATED


def test_the_same_section_twice_is_foreign() -> None:
    twice = Block(BLOCK.key, BLOCK.tokens, BLOCK.specs[:1] * 2, BLOCK.data[:1] * 2)
    assert reason_of(WHOLE, WANTED, twice) is BadReason.FOREIGN


def test_neighbouring_sections_are_read_with_one_call() -> None:
    fs = FaultFileSystem(holding(WIDE_FILE))
    read_some(fs, (0, 1, 2))
    assert fs.calls.count("preadv") == 2, "the header, and the rest"
    read_some(fs, (1, 2))
    assert fs.calls.count("preadv") == 5, "the header, the tokens and two sections"


def test_a_state_is_not_its_block() -> None:
    key = replace(BLOCK.key, kind=BlockKind.STATE)
    whole = b"".join(encode_block(ROOT, key, BLOCK.tokens, BLOCK.sections))
    assert reason_of(whole) is BadReason.FOREIGN
    wanted = Wanted(ROOT, key, BLOCK.tokens)
    assert read(holding(whole), wanted) == list(BLOCK.data)
    assert reason_of(WHOLE, wanted) is BadReason.FOREIGN
    assert read_tokens(holding(whole), PATH, block_name(key), root_name(ROOT))[0].key == key
    with pytest.raises(BadBlock):
        read_tokens(holding(whole), PATH, block_name(BLOCK.key), root_name(ROOT))


def test_other_token_ids_under_the_right_name_are_refused() -> None:
    other = bytes(len(BLOCK.tokens))
    forged = b"".join(encode_block(ROOT, BLOCK.key, other, BLOCK.sections))
    assert reason_of(forged) is BadReason.TOKENS


def test_a_buffer_of_another_size_is_our_own_bug() -> None:
    views = [(spec, memoryview(bytearray(1))) for spec in BLOCK.specs]
    with pytest.raises(AssertionError):
        read_block(holding(WHOLE), PATH, WANTED, views)


def test_links_directories_and_pipes_are_never_read(tmp_path: Path) -> None:
    fs = RealFileSystem()
    (tmp_path / "good").write_bytes(WHOLE)
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    views = [(spec, memoryview(bytearray(spec.nbytes))) for spec in BLOCK.specs]
    assert read_block(fs, tmp_path / "good", WANTED, views) == len(WHOLE)
    for name in ("directory", "pipe"):
        with pytest.raises(BadBlock) as caught:
            read_block(fs, tmp_path / name, WANTED, views)
        assert caught.value.reason is BadReason.FOREIGN
    with pytest.raises(OSError) as refused:
        read_block(fs, tmp_path / "link", WANTED, views)
    assert refused.value.errno == errno.ELOOP


def test_a_long_header_is_read_in_two_parts() -> None:
    specs = tuple(SectionSpec(f"{i}.k", "U8", (1,)) for i in range(300))
    block = Block(BLOCK.key, BLOCK.tokens, specs, tuple(bytes([i % 256]) for i in range(300)))
    whole = b"".join(encode_block(ROOT, block.key, block.tokens, block.sections))
    fs = holding(whole)
    buffers = [bytearray(1) for _ in specs]
    views = [(s, memoryview(b)) for s, b in zip(specs, buffers, strict=True)]
    assert read_block(fs, PATH, WANTED, views) == len(whole)
    assert tuple(bytes(buffer) for buffer in buffers) == block.data
    fs.write(PATH, whole[:20_000])
    with pytest.raises(BadBlock) as caught:
        read_block(fs, PATH, WANTED, views)
    assert caught.value.reason is BadReason.TRUNCATED


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    class Shrinking(MemoryFileSystem):
        def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            got = super().preadv(fd, buffers, offset)
            del self.content(PATH)[ALIGNMENT:]
            return got

    fs = Shrinking(Clock())
    fs.write(PATH, WHOLE)
    with pytest.raises(BadBlock) as caught:
        read(fs)
    assert caught.value.reason is BadReason.TRUNCATED
    fs.write(PATH, WHOLE)
    with pytest.raises(BadBlock) as damaged:
        read_tokens(fs, PATH, block_name(BLOCK.key), root_name(ROOT))
    assert damaged.value.reason is BadReason.TRUNCATED


def test_a_file_that_is_shorter_than_it_was_when_opened_is_refused() -> None:
    class Grown(MemoryFileSystem):
        def fstat(self, fd: int) -> FileStat:
            return replace(super().fstat(fd), size=len(WHOLE))

    fs = Grown(Clock())
    fs.write(PATH, WHOLE[:100])
    with pytest.raises(BadBlock) as caught:
        read(fs)
    assert caught.value.reason is BadReason.TRUNCATED


def test_tokens_are_read_without_the_rest() -> None:
    fs = holding(WHOLE)
    name = block_name(BLOCK.key)
    header, tokens = read_tokens(fs, PATH, name, root_name(ROOT))
    assert (header.key, tokens) == (BLOCK.key, BLOCK.tokens)
    for other, root16 in (
        (name, root_name(OTHER_ROOT)),
        (BlockName(name.name32, name.parent16, 5), root_name(ROOT)),
        (BlockName("0" * 32, name.parent16, 4), root_name(ROOT)),
    ):
        with pytest.raises(BadBlock) as caught:
            read_tokens(fs, PATH, other, root16)
        assert caught.value.reason is BadReason.FOREIGN
    fs.content(PATH)[ALIGNMENT] ^= 1
    with pytest.raises(BadBlock) as damaged:
        read_tokens(fs, PATH, name, root_name(ROOT))
    assert damaged.value.reason is BadReason.CHECKSUM


@pytest.mark.parametrize(
    ("call", "mode"),
    [
        ("open", "once"),
        ("open", "torn"),
        ("writev", "once"),
        ("close", "once"),
        ("close", "torn"),
        ("rename", "once"),
        ("rename", "torn"),
    ],
)
def test_a_failed_write_leaves_nothing_half_made(call: str, mode: FaultMode) -> None:
    memory = holding(b"")
    memory.unlink(PATH)
    fs = FaultFileSystem(memory)
    fs.fail_next(call, mode, errno.EIO)
    buffers = encode_block(ROOT, BLOCK.key, BLOCK.tokens, BLOCK.sections)
    with pytest.raises(OSError):
        write_file(fs, TEMP, PATH, buffers)
    assert TEMP not in memory.files()
    assert all(memory.content(path) == WHOLE for path in memory.files())


def test_a_temporary_file_of_another_is_left_alone() -> None:
    fs = holding(b"")
    fs.write(TEMP, b"another's")
    with pytest.raises(FileExistsError):
        write_file(fs, TEMP, PATH, [memoryview(b"x")])
    assert fs.content(TEMP) == b"another's"


def test_only_what_is_read_once_passes_the_page_cache_by() -> None:
    fs = holding(WHOLE)
    read(fs)
    assert fs.bypassed == []
    buffers = [bytearray(spec.nbytes) for spec in BLOCK.specs]
    views = [(s, memoryview(b)) for s, b in zip(BLOCK.specs, buffers, strict=True)]
    fault = FaultFileSystem(fs)
    read_block(fault, PATH, WANTED, views, is_once=True)
    assert fs.bypassed == [PATH]
    fault.fail_next("bypass_cache", "once", errno.ENOTSUP)
    assert read_block(fault, PATH, WANTED, views, is_once=True) == len(WHOLE), "only a wish"


def test_a_verified_file_leaves_the_page_cache_as_it_was() -> None:
    fs = holding(WHOLE)
    assert verify_block(fs, PATH, block_name(BLOCK.key), root_name(ROOT)) == len(WHOLE)
    assert fs.bypassed == [PATH]
