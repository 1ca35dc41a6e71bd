"""One block file written and read: what is found is verified before anyone believes it.

Knows nothing about budgets, counters or which files there are.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omlx.storage.fs import READ_FLAGS, WRITE_FLAGS, FileSystem, flat, read_into, write_all
from omlx.storage.layout import BlockKey, BlockName, RootHash, block_name
from omlx.storage.record import (
    BadBlock,
    BadReason,
    Header,
    SectionSpec,
    StoredSection,
    checksum,
    decode_header,
    encode_header,
    header_bytes,
    new_checksum,
    tokens_spec,
)

_FIRST_READ_BYTES = 16384
_PIECE_BYTES = 1 << 22

Sections = Sequence[tuple[SectionSpec, memoryview]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The block that a reader expects in a file."""

    root: RootHash
    key: BlockKey
    tokens: bytes


def encode_block(
    root: RootHash, key: BlockKey, tokens: bytes, sections: Sections
) -> list[memoryview]:
    """The buffers of a block's file, checksums included; ValueError as `encode_header`."""
    specs = [tokens_spec(key.count)]
    buffers = [memoryview(tokens)]
    for spec, data in sections:
        assert spec.nbytes == data.nbytes, spec
        specs.append(spec)
        buffers.append(flat(data))
    header = encode_header(root, key, specs, [checksum(buffer) for buffer in buffers])
    return [memoryview(header), *buffers]


def write_file(fs: FileSystem, temp: Path, path: Path, buffers: Sequence[memoryview]) -> None:
    """Write `temp` and rename it to `path`; after an OSError neither is left half made.

    FileExistsError means that `temp` is someone else's, and it stays.
    """
    try:
        fd = fs.open(temp, WRITE_FLAGS, 0o600)
        try:
            write_all(fs, fd, buffers)
        finally:
            fs.close(fd)
        fs.rename(temp, path)
    except FileExistsError:
        raise
    except OSError:
        with suppress(OSError):
            fs.unlink(temp)
        raise


@contextmanager
def _opened(fs: FileSystem, path: Path) -> Generator[tuple[int, int], None, None]:
    """The descriptor and the size of a regular file; OSError, BadBlock."""
    fd = fs.open(path, READ_FLAGS)
    try:
        status = fs.fstat(fd)
        if not status.is_file:
            raise BadBlock(BadReason.FOREIGN, "not a regular file")
        yield fd, status.size
    finally:
        with suppress(OSError):  # nothing was written through it
            fs.close(fd)


def _bypass_cache(fs: FileSystem, fd: int) -> None:
    with suppress(OSError):  # it is only a wish
        fs.bypass_cache(fd)


def _read_header(fs: FileSystem, fd: int, size: int) -> Header:
    data = bytearray(min(size, _FIRST_READ_BYTES))
    got = read_into(fs, fd, [memoryview(data)], offset=0)
    del data[got:]
    missing = header_bytes(bytes(data[:8]), size) - got
    if missing > 0:
        rest = bytearray(missing)
        if read_into(fs, fd, [memoryview(rest)], offset=got) < missing:
            raise BadBlock(BadReason.TRUNCATED, "shorter than its length")
        data += rest
    return decode_header(bytes(data), size)


def _verify(section: StoredSection, data: memoryview | bytearray) -> None:
    if checksum(data) != section.checksum:
        raise BadBlock(BadReason.CHECKSUM, section.spec.name)


_Part = tuple[StoredSection, memoryview]


def read_block(
    fs: FileSystem, path: Path, wanted: Wanted, sections: Sections, *, is_once: bool = False
) -> int:
    """Fill the buffers of `sections`, some or all of a file's, and verify them; OSError, BadBlock.

    Header and tokens are always read and verified. Mutates the buffers, also where it fails.
    Returns the number of bytes read. `is_once` says that they will not be read again soon.
    """
    for spec, buffer in sections:
        assert spec.nbytes == buffer.nbytes and not buffer.readonly, spec
    tokens = bytearray(len(wanted.tokens))
    with _opened(fs, path) as (fd, size):
        if is_once:
            _bypass_cache(fs, fd)
        header = _read_header(fs, fd, size)
        if header.root != wanted.root or header.key != wanted.key:
            raise BadBlock(BadReason.FOREIGN, "another block's content")
        parts = [(header.tokens, memoryview(tokens)), *_parts(header, sections)]
        num_bytes = _read_parts(fs, fd, header.data_start, parts)
    _verify(header.tokens, tokens)
    if bytes(tokens) != wanted.tokens:
        raise BadBlock(BadReason.TOKENS)
    for stored, buffer in parts[1:]:
        _verify(stored, buffer)
    return header.data_start + num_bytes


def _parts(header: Header, sections: Sections) -> list[_Part]:
    """The stored sections that are asked for and their buffers, in the order of the file."""
    stored = {section.spec: section for section in header.sections}
    parts: list[_Part] = []
    for spec, buffer in sections:
        if spec not in stored:
            raise BadBlock(BadReason.FOREIGN, "other sections than the model's")
        parts.append((stored.pop(spec), flat(buffer)))
    return sorted(parts, key=lambda part: part[0].start)


def _read_parts(fs: FileSystem, fd: int, data_start: int, parts: Sequence[_Part]) -> int:
    """Fill buffers that are in the order of the file, neighbours together; how many bytes."""
    total = idx = 0
    while idx < len(parts):
        start = end = parts[idx][0].start
        run: list[memoryview] = []
        while idx < len(parts) and parts[idx][0].start == end:
            run.append(parts[idx][1])
            end = parts[idx][0].end
            idx += 1
        if read_into(fs, fd, run, offset=data_start + start) < end - start:
            raise BadBlock(BadReason.TRUNCATED, "shorter than its length")
        total += end - start
    return total


def read_tokens(fs: FileSystem, path: Path, name: BlockName, root16: str) -> tuple[Header, bytes]:
    """The header and the token ids of a file that is called `name`; OSError, BadBlock.

    The other sections are not read.
    """
    tokens = bytearray(tokens_spec(name.count).nbytes)
    with _opened(fs, path) as (fd, size):
        header = _read_header(fs, fd, size)
        if block_name(header.key) != name or header.root.hex()[:16] != root16:
            raise BadBlock(BadReason.FOREIGN, "another block's content")
        if read_into(fs, fd, [memoryview(tokens)], offset=header.data_start) < len(tokens):
            raise BadBlock(BadReason.TRUNCATED, "shorter than its length")
    _verify(header.tokens, tokens)
    return header, bytes(tokens)


def verify_block(fs: FileSystem, path: Path, name: BlockName, root16: str) -> int:
    """Read all of a file that is called `name`, in pieces, and verify it; OSError, BadBlock.

    Returns the number of bytes read.
    """
    with _opened(fs, path) as (fd, size):
        _bypass_cache(fs, fd)
        header = _read_header(fs, fd, size)
        if block_name(header.key) != name or header.root.hex()[:16] != root16:
            raise BadBlock(BadReason.FOREIGN, "another block's content")
        buffer = memoryview(bytearray(min(_PIECE_BYTES, size)))
        for section in (header.tokens, *header.sections):
            found = new_checksum()
            at, end = header.data_start + section.start, header.data_start + section.end
            while at < end:
                piece = buffer[: end - at]
                if read_into(fs, fd, [piece], offset=at) < len(piece):
                    raise BadBlock(BadReason.TRUNCATED, "shorter than its length")
                found.update(piece)
                at += len(piece)
            if found.digest() != section.checksum:
                raise BadBlock(BadReason.CHECKSUM, section.spec.name)
    return size
