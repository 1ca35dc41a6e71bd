"""All names of the store."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omlx.storage import layout
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, BlockName, RootHash

ROOT = RootHash(bytes(range(32)))
KEY = BlockKey(BlockHash(bytes(range(100, 132))), BlockHash(bytes(range(200, 232))), 256)


def test_a_place_says_root_and_chain() -> None:
    place = layout.block_path(Path(), ROOT, KEY).as_posix()
    assert layout.root_of(place) == "0001020304050607"
    assert layout.chain_keys(place) == (
        "0001020304050607" + "c8c9cacbcccdcecf",
        "0001020304050607" + "6465666768696a6b",
    )
    for other in ("notes", "blocks/x", "blocks/0001020304050607", "x/0001020304050607/y"):
        assert layout.root_of(other) == ""


def test_a_block_has_this_path() -> None:
    path = layout.block_path(Path("/c"), ROOT, KEY)
    assert path == Path(
        "/c/blocks/0001020304050607/64/"
        "c8c9cacbcccdcecfd0d1d2d3d4d5d6d7.6465666768696a6b.256.safetensors"
    )
    assert path.parent == layout.shard_dir(Path("/c"), ROOT, KEY.parent)
    assert path.parent.parent == layout.root_dir(Path("/c"), ROOT)
    assert layout.is_root_name(layout.root_name(ROOT)) and layout.is_shard_name("64")


def test_a_state_lies_beside_its_block() -> None:
    key = replace(KEY, kind=BlockKind.STATE)
    block, state = (layout.block_path(Path("/c"), ROOT, each) for each in (KEY, key))
    assert state == block.with_suffix(".state.safetensors")
    places = [path.relative_to("/c").as_posix() for path in (block, state)]
    assert layout.chain_keys(places[0]) == layout.chain_keys(places[1])


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
    st.integers(1, layout.MAX_COUNT),
    st.sampled_from(BlockKind),
)
def test_every_block_name_parses_back(
    parent: bytes, name: bytes, count: int, kind: BlockKind
) -> None:
    parsed = layout.block_name(BlockKey(BlockHash(parent), BlockHash(name), count, kind))
    assert layout.parse_block_name(parsed.filename) == parsed
    assert layout.kind_of_name(parsed.filename) is parsed.kind is kind
    assert parsed.name16 == name.hex()[:16] and parsed.count == count


_NAME = f"{'a' * 32}.{'b' * 16}.7.safetensors"


@given(st.text(max_size=80))
@example(_NAME + "\n")
@example(_NAME.upper())
@example(_NAME.replace("7", "7.state"))
@example(_NAME.replace("7", "7.state.state"))
@example(_NAME.replace("7", "7.State"))
@example("\u0661".join(_NAME.split("7")))  # an Arabic one is a digit, too
def test_any_other_name_is_refused_or_means_itself(text: str) -> None:
    parsed = layout.parse_block_name(text)
    assert parsed is None or parsed.filename == text
    pid = layout.parse_temp_name(text)
    assert pid is None or text.startswith(layout.temp_name(pid, 0)[:-1])


@given(st.integers(0, len(_NAME) - 1), st.characters())
def test_a_name_with_one_other_character_never_reads_as_another_block(
    idx: int, character: str
) -> None:
    changed = _NAME[:idx] + character + _NAME[idx + 1 :]
    parsed = layout.parse_block_name(changed)
    assert parsed is None or parsed.filename == changed


@pytest.mark.parametrize("count", ["0", "07", "-1", "65537", "99999", "1e3", "", " 1"])
def test_counts_out_of_range_are_refused(count: str) -> None:
    assert layout.parse_block_name(f"{'a' * 32}.{'b' * 16}.{count}.safetensors") is None


def test_the_largest_count_is_accepted() -> None:
    name = BlockName("a" * 32, "b" * 16, layout.MAX_COUNT)
    assert layout.parse_block_name(name.filename) == name


def test_temporary_names_say_who_writes() -> None:
    assert layout.temp_name(42, 7) == ".tmp-42-7"
    assert layout.parse_temp_name(".tmp-42-7") == 42
    for other in (
        ".tmp-42",
        ".tmp--7",
        ".tmp-0-1",
        ".tmp-042-1",
        "tmp-4-1",
        ".tmp-4-1.x",
        ".tmp-4-1\n",
    ):
        assert layout.parse_temp_name(other) is None
