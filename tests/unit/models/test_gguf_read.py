"""The reader of GGUF files: what is there is read, and whatever lies is refused.

Knows nothing about the import.
"""

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.gguf_read import GgufFile
from tests.unit.models import gguf_writer as w


def small(path: Path, **kwargs: int) -> Path:
    metadata = {
        "name": w.text("é"),
        "list": w.array([w.text("a"), w.text("")]),
        "nested": w.array([w.array([w.u32(1)]), w.array([w.u32(2), w.u32(3)])]),
        "flag": w.Typed(7, b"\1"),
        "big": w.Typed(10, struct.pack("<Q", 2**40)),
        "low": w.Typed(1, b"\xff"),
        "half": w.Typed(12, struct.pack("<d", 0.5)),
    }
    tensors = [w.tensor("a", (2, 64), "Q4_0"), w.tensor("b", (3,), "F32")]
    return w.write_gguf(path, metadata, tensors, **kwargs)


@pytest.mark.parametrize("version", [2, 3])
def test_everything_is_read(tmp_path: Path, version: int) -> None:
    with GgufFile(small(tmp_path / "m.gguf", version=version)) as gguf:
        assert gguf.metadata == {
            "name": "é",
            "list": ["a", ""],
            "nested": [[1], [2, 3]],
            "flag": True,
            "big": 2**40,
            "low": -1,
            "half": 0.5,
        }
        first, second = gguf.tensors["a"], gguf.tensors["b"]
        assert (first.shape, first.quant.name, first.rows, first.nbytes) == ((2, 64), "Q4_0", 2, 72)
        assert (second.shape, second.rows, second.columns) == ((3,), 1, 3)
        assert gguf.read_rows(first, 1, 1) == w.tensor("a", (2, 64), "Q4_0").data[36:]
        assert gguf.read_rows(second, 0, 1) == w.tensor("b", (3,), "F32").data


def test_other_alignments(tmp_path: Path) -> None:
    metadata = {"general.alignment": w.u32(128)}
    tensors = [w.tensor("a", (3,), "F32"), w.tensor("b", (3,), "F32")]
    path = w.write_gguf(tmp_path / "m.gguf", metadata, tensors, alignment=128)
    with GgufFile(path) as gguf:
        assert gguf.tensors["b"].offset % 128 == 0
        assert gguf.read_rows(gguf.tensors["b"], 0, 1) == tensors[1].data


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    path = small(tmp_path / "m.gguf")
    data = path.read_bytes()
    content_end = len(data) - 20  # the last tensor's padding is not needed
    for size in range(content_end):
        path.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"m\.gguf"):
            GgufFile(path)


def test_random_damage_is_an_error_or_harmless(tmp_path: Path) -> None:
    path = small(tmp_path / "m.gguf")
    data = path.read_bytes()
    rng = random.Random(5)
    num_refused = 0
    for _ in range(800):
        broken = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            broken[rng.randrange(len(broken) - 120)] = rng.choice([0, 1, 9, 0x7F, 0xFF])
        path.write_bytes(broken)
        try:
            with GgufFile(path) as gguf:
                for info in gguf.tensors.values():
                    assert len(gguf.read_rows(info, 0, info.rows)) == info.nbytes
        except ModelError:
            num_refused += 1
    assert 400 < num_refused < 800


def head(num_tensors: int, num_entries: int, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_entries)


def entry(kind: int, data: bytes) -> bytes:
    return head(0, 1) + w.text("k").data + struct.pack("<I", kind) + data


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 1) + bytes(4)


HUGE = 2**62
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not a GGUF file"),
    "magic": (head(0, 0, magic=b"GGML"), "is not a GGUF file"),
    "version 1": (head(0, 0, version=1), "has GGUF version 1"),
    "big-endian": (head(0, 0, version=3 << 24), "big-endian"),
    "tensors": (head(HUGE, 0) + bytes(4096), "tensors don't fit"),
    "entries": (head(0, HUGE) + bytes(4096), "metadata entries don't fit"),
    "key": (head(0, 1) + struct.pack("<Q", HUGE) + bytes(99), "text of .* bytes"),
    "key length": (head(0, 1) + struct.pack("<Q", 70_000) + bytes(80_000), "at most 65535"),
    "text": (entry(8, struct.pack("<Q", HUGE)), "text of .* bytes"),
    "text in the file's size": (entry(8, struct.pack("<Q", 999) + bytes(99)), "truncated"),
    "not utf-8": (entry(8, struct.pack("<Q", 1) + b"\xff"), "not UTF-8"),
    "array": (entry(9, struct.pack("<IQ", 0, HUGE) + bytes(99)), "array items don't fit"),
    "array of texts": (entry(9, struct.pack("<IQ", 8, HUGE)), "array items don't fit"),
    "array of arrays": (entry(9, struct.pack("<IQ", 9, HUGE)), "array items don't fit"),
    "array of unknowns": (entry(9, struct.pack("<IQ", 99, 1) + bytes(9)), "unknown type 99"),
    "recursion": (entry(9, nested(100_000)), "nested too deeply"),
    "unknown type": (entry(13, bytes(99)), "unknown type 13"),
    "twice": (
        head(0, 2) + (w.text("k").data + struct.pack("<I", 0) + b"\1") * 2 + bytes(9),
        "'k' twice",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_in_the_head_are_refused_without_allocating(tmp_path: Path, name: str) -> None:
    data, reason = LIES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=reason):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    count = 2**22 + 1
    path.write_bytes(entry(9, struct.pack("<IQ", 0, count) + bytes(count)))
    with pytest.raises(ModelError, match="more than 4194304 metadata values"):
        GgufFile(path)


Change = Callable[[list[w.Tensor]], None]


def rename(tensors: list[w.Tensor]) -> None:
    tensors[1].name = "a"


def overlap(tensors: list[w.Tensor]) -> None:
    tensors[1].offset = 32


def unaligned(tensors: list[w.Tensor]) -> None:
    tensors[1].offset = 97


def beyond(tensors: list[w.Tensor]) -> None:
    tensors[1].offset = 2**40


def wraps(tensors: list[w.Tensor]) -> None:
    tensors[1].offset = 2**64 - 32


def larger(tensors: list[w.Tensor]) -> None:
    tensors[1].shape = (1000,)


def empty(tensors: list[w.Tensor]) -> None:
    tensors[1].shape = (0,)


def no_rank(tensors: list[w.Tensor]) -> None:
    tensors[1].shape = ()


def deep(tensors: list[w.Tensor]) -> None:
    tensors[1].shape = (1,) * 5


def overflow(tensors: list[w.Tensor]) -> None:
    tensors[1].shape = (2**33, 2**33, 2**33, 4)


def ragged(tensors: list[w.Tensor]) -> None:
    tensors[0].shape = (2, 48)


def unknown(tensors: list[w.Tensor]) -> None:
    tensors[0].quant = "Q8_K"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (rename, "'a' twice"),
        (overlap, "over another one"),
        (unaligned, "wrongly"),
        (beyond, "truncated"),
        (wraps, "truncated|wrongly"),
        (larger, "truncated"),
        (empty, "shape"),
        (no_rank, "0 dimensions"),
        (deep, "5 dimensions"),
        (overflow, "shape"),
        (ragged, "shape"),
        (unknown, "type Q8_K, which is not supported yet"),
    ],
)
def test_lies_about_tensors_are_refused(tmp_path: Path, change: Change, reason: str) -> None:
    tensors = [w.tensor("a", (2, 64), "Q4_0"), w.tensor("b", (3,), "F32")]
    change(tensors)
    with pytest.raises(ModelError, match=reason):
        GgufFile(w.write_gguf(tmp_path / "m.gguf", {}, tensors))


@pytest.mark.parametrize("alignment", [w.u32(0), w.u32(3), w.u32(2**31), w.text("32"), w.f32(32)])
def test_odd_alignments_are_refused(tmp_path: Path, alignment: w.Typed) -> None:
    path = w.write_gguf(tmp_path / "m.gguf", {"general.alignment": alignment}, [])
    with pytest.raises(ModelError, match="alignment"):
        GgufFile(path)


def test_a_file_that_shrinks_later_is_an_error(tmp_path: Path) -> None:
    path = w.write_gguf(tmp_path / "m.gguf", {}, [w.tensor("a", (100, 1000), "F32")])
    with GgufFile(path) as gguf:
        os.truncate(path, 300_000)
        with pytest.raises(ModelError, match="became shorter"):
            gguf.read_rows(gguf.tensors["a"], 0, 100)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="can't be read"):
        GgufFile(tmp_path)


def test_entries_of_the_wrong_type_are_named(tmp_path: Path) -> None:
    with GgufFile(small(tmp_path / "m.gguf")) as gguf:
        assert (gguf.text("name"), gguf.texts("list")) == ("é", ["a", ""])
        assert (gguf.number("half"), gguf.integer("none", default=3)) == (0.5, 3)
        for ask in (gguf.text, gguf.integer, gguf.number, gguf.texts, gguf.integers):
            with pytest.raises(ModelError, match="'flag' is not a"):
                ask("flag")
            with pytest.raises(ModelError, match="'none' is missing"):
                ask("none")
        for key in ("big", "low"):
            with pytest.raises(ModelError, match="not a whole number"):
                gguf.integer(key)
