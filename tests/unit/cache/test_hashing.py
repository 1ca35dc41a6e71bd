"""Block names: every field counts, none can pass for another, and the format can't drift."""

import hashlib
import itertools
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omlx.cache.hashing import (
    chain_hashes,
    common_prefix,
    compute_block_hash,
    compute_root_hash,
    token_array,
)
from omlx.storage.layout import BlockHash, RootHash

FINGERPRINT = "ab" * 32
ROOT = RootHash(bytes(range(32)))
OTHER = RootHash(bytes(range(1, 33)))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
GOLDEN_ROOT = "0b42fd9364d247b835c7c52d94e65840434b81f3c4f43ea9b036d8116206e73a"
GOLDEN_BLOCKS = (
    "d5b517e569a438bada4ec761c380f1fde565ec05b07f531a5485165ef68b9148",
    "b7de88b7a0f9898c71f8add31f3dabb305b2c4fb9cbc91867888662249bd715f",
)
quick = settings(max_examples=60, deadline=None, database=None)


def field(tag: bytes, value: bytes) -> bytes:
    return tag + struct.pack("<Q", len(value)) + value


def test_golden_root() -> None:
    """A change here makes every stored block a miss: it needs a new format version."""
    root = compute_root_hash(FINGERPRINT, {"sections": "kv.0=F32[1,2,count,3]:0k,0v"})
    assert root.hex() == GOLDEN_ROOT


def test_golden_block() -> None:
    """A change here makes every stored block a miss: it needs a new format version."""
    first = compute_block_hash(ROOT, None, [1, 2, 300, 70_000])
    second = compute_block_hash(ROOT, first, [5], [("image", b"\x01\x02")])
    assert (first.hex(), second.hex()) == GOLDEN_BLOCKS


def test_the_format_is_what_the_documents_say() -> None:
    """Tag, length as u64, value, for each field in turn; SHA-256 of the whole."""
    root = field(b"V", struct.pack("<I", 1)) + field(b"F", bytes.fromhex(FINGERPRINT))
    root += field(b"L", b"a") + field(b"l", b"1") + field(b"L", b"b") + field(b"l", b"2")
    digest = hashlib.sha256(root).digest()
    assert compute_root_hash(FINGERPRINT, {"b": "2", "a": "1"}) == digest
    block = field(b"P", bytes(32)) + field(b"C", struct.pack("<I", 2))
    block += field(b"T", struct.pack("<II", 7, 8)) + field(b"K", b"image") + field(b"k", b"xy")
    name = compute_block_hash(ROOT, BlockHash(bytes(32)), [7, 8], [("image", b"xy")])
    assert name == hashlib.sha256(block).digest()


def test_the_order_of_layout_fields_means_nothing() -> None:
    fields = [("a", "1"), ("b", "2"), ("c", "3")]
    roots = {compute_root_hash(FINGERPRINT, dict(p)) for p in itertools.permutations(fields)}
    assert len(roots) == 1


def test_no_two_layouts_give_the_same_root() -> None:
    """Fields swapped, empty against missing, and "a"+"bc" against "ab"+"c"."""
    layouts: list[dict[str, str]] = [
        {},
        {"": ""},
        {"a": ""},
        {"": "a"},
        {"a": "bc"},
        {"ab": "c"},
        {"abc": ""},
        {"a": "b", "c": ""},
        {"a": "", "b": "c"},
        {"b": "a"},
        {"a": "b"},
        {"a": "b", "b": "a"},
        {"bits": "4", "group": "6"},
        {"bits": "6", "group": "4"},
        {"bits": "46"},
        {"L": "l"},
    ]
    roots = {compute_root_hash(f, x) for x in layouts for f in (FINGERPRINT, "ba" * 32)}
    assert len(roots) == 2 * len(layouts)


def test_no_two_blocks_that_differ_in_a_field_share_a_name() -> None:
    parents = [None, BlockHash(bytes(32)), BlockHash(OTHER)]
    tokens = [[], [0], [0, 0], [1, 23], [12, 3], [123], [23, 1], [1, 2, 3], [256], [1, 0]]
    extras: list[list[tuple[str, bytes]]] = [
        [],
        [("", b"")],
        [("a", b"bc")],
        [("ab", b"c")],
        [("bc", b"a")],
        [("a", b""), ("bc", b"")],
        [("bc", b""), ("a", b"")],
        [("K", b"k")],
        [("k", b"K")],
        [("a", b"\x00")],
    ]
    cases = list(itertools.product(parents, tokens, extras))
    assert len({compute_block_hash(ROOT, *case) for case in cases}) == len(cases)


def test_the_first_block_of_another_model_has_another_name() -> None:
    assert compute_block_hash(ROOT, None, [1]) != compute_block_hash(OTHER, None, [1])


def test_a_root_is_the_parent_of_a_first_block() -> None:
    name = compute_block_hash(OTHER, BlockHash(ROOT), [1])
    assert compute_block_hash(ROOT, None, [1]) == name


@quick
@given(TOKENS, st.integers(1, 9))
@example([], 1)
@example([1, 2, 3], 3)
@example([1, 2, 3], 4)
def test_a_chain_is_the_block_hash_repeated(tokens: list[int], size: int) -> None:
    names: list[BlockHash] = []
    for start in range(0, len(tokens) // size * size, size):
        parent = names[-1] if names else None
        names.append(compute_block_hash(ROOT, parent, tokens[start : start + size]))
    assert chain_hashes(ROOT, token_array(tokens), size) == names


@quick
@given(TOKENS, TOKENS, st.integers(1, 9))
def test_chains_share_exactly_the_blocks_before_the_fork(
    a: list[int], b: list[int], size: int
) -> None:
    ours, theirs = (chain_hashes(ROOT, token_array(x), size) for x in ([*a, *b], a))
    assert ours[: len(theirs)] == theirs
    changed = chain_hashes(ROOT, token_array([*a, *((t + 1) % 2**32 for t in b)]), size)
    num_shared = len(a) // size if b else len(ours)
    assert changed[:num_shared] == ours[:num_shared]
    assert not set(changed[num_shared:]) & set(ours[num_shared:])


@quick
@given(TOKENS, TOKENS, TOKENS)
@example([], [], [])
@example([], [1], [])
@example([1, 2], [], [3])
@example([], [1, 2], [1, 3])
def test_common_prefix(shared: list[int], a: list[int], b: list[int]) -> None:
    left, right = [*shared, *a], [*shared, *b]
    naive = sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], zip(left, right)))  # noqa: B905
    assert common_prefix(token_array(left), token_array(right)) == naive >= len(shared)


@quick
@given(TOKENS)
def test_token_arrays_are_little_endian_u32(tokens: list[int]) -> None:
    array = token_array(tokens)
    assert array.tobytes() == struct.pack(f"<{len(tokens)}I", *tokens)
    assert token_array(array).tobytes() == array.tobytes()
    assert token_array(array[::-1]).tolist() == tokens[::-1]


@pytest.mark.parametrize("tokens", [[-1], [2**32], [5, -7, 5], [2**40, 1]])
def test_a_token_id_out_of_range_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="0..2"):
        token_array(tokens)


def test_a_hash_of_a_view_is_that_of_its_tokens() -> None:
    array = np.arange(20, dtype="<u4")
    assert compute_block_hash(ROOT, None, array[4:8]) == compute_block_hash(
        ROOT, None, [4, 5, 6, 7]
    )
    assert compute_block_hash(ROOT, None, array[::2][:3]) == compute_block_hash(
        ROOT, None, [0, 2, 4]
    )
