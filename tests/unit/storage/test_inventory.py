"""The order in which blocks go: leaves first, oldest first."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from omlx.storage.inventory import Inventory
from omlx.storage.layout import BlockName
from omlx.storage.scan import FileKind, FoundFile


def block(name: int, parent: int, mtime: float, root16: str = "a") -> FoundFile:
    filename = BlockName(f"{name:016x}" + "0" * 16, f"{parent:016x}", 4).filename
    return FoundFile(f"blocks/{root16 * 16}/00/{filename}", 10, mtime, FileKind.BLOCK)


def short(place: str) -> str:
    """Root and name of a block, as "a/3"."""
    if not place.startswith("blocks"):
        return place
    return f"{place[7]}/{int(place[27:43], 16)}"


def drain(inventory: Inventory) -> list[str]:
    order: list[str] = []
    while leaf := inventory.next_leaf():
        order.append(short(leaf.place))
        inventory.remove(leaf.place)
    return order


def test_a_chain_goes_from_its_end_even_where_the_end_is_newest() -> None:
    assert drain(Inventory([block(1, 0, 5), block(2, 1, 6), block(3, 2, 7)])) == [
        "a/3",
        "a/2",
        "a/1",
    ]


def test_of_two_chains_the_older_end_goes_first() -> None:
    files = [block(1, 0, 9), block(2, 1, 1), block(3, 1, 5), block(7, 0, 3)]
    assert drain(Inventory(files)) == ["a/2", "a/7", "a/3", "a/1"]


def test_a_name_in_another_root_is_another_block() -> None:
    assert drain(Inventory([block(1, 0, 1, "a"), block(2, 1, 2, "b")])) == ["a/1", "b/2"]


def test_a_new_child_protects_its_parent() -> None:
    inventory = Inventory([block(1, 0, 1), block(2, 0, 2)])
    inventory.add(block(3, 1, 3))
    assert drain(inventory) == ["a/2", "a/3", "a/1"]


def test_a_touch_moves_a_block_back() -> None:
    inventory = Inventory([block(1, 0, 1), block(2, 0, 2)])
    inventory.add(block(1, 0, 9))
    assert (inventory.num_blocks, inventory.num_bytes) == (2, 20)
    assert drain(inventory) == ["a/2", "a/1"]


def test_everything_counts_and_only_blocks_go() -> None:
    files = [
        block(1, 0, 1),
        FoundFile("new.safetensors", 7, 0.5, FileKind.OTHER_BLOCK),
        FoundFile("notes", 100, 0.1, FileKind.UNKNOWN),
    ]
    inventory = Inventory(files)
    assert (inventory.num_bytes, inventory.evictable_bytes, inventory.num_blocks) == (117, 17, 2)
    assert drain(inventory) == ["new.safetensors", "a/1"]
    assert (inventory.num_bytes, inventory.evictable_bytes, inventory.num_blocks) == (100, 0, 0)
    assert "notes" in inventory and inventory.remove("nothing") is None


def test_what_is_set_aside_counts_but_does_not_come_again() -> None:
    inventory = Inventory([block(1, 0, 1), block(2, 1, 2), block(3, 0, 3)])
    leaf = inventory.next_leaf()
    assert leaf is not None and short(leaf.place) == "a/2"
    inventory.set_aside(leaf.place)
    inventory.set_aside(leaf.place)
    assert (inventory.num_bytes, inventory.evictable_bytes) == (30, 20)
    assert drain(inventory) == ["a/1", "a/3"]
    inventory.remove(leaf.place)
    assert (inventory.num_bytes, inventory.evictable_bytes) == (0, 0)


def test_blocks_that_name_each_other_as_parents_go_too() -> None:
    files = [block(1, 2, 1), block(2, 1, 2), block(3, 3, 3), block(4, 0, 4)]
    assert sorted(drain(Inventory(files))) == ["a/1", "a/2", "a/3", "a/4"]


def test_a_name_that_is_there_twice_still_leads_to_its_parent_and_child() -> None:
    first, second = block(2, 1, 2), block(2, 1, 3)
    second = replace(second, place=second.place.replace("/00/", "/01/"))
    inventory = Inventory([block(1, 0, 1), first, second, block(3, 2, 4)])
    inventory.remove(first.place)
    assert drain(inventory) == ["a/3", "a/2", "a/1"]


names = st.integers(0, 6)


@given(st.lists(st.tuples(names, names, st.integers(0, 5)), max_size=20))
def test_any_set_of_files_is_drained_to_nothing(found: Sequence[tuple[int, int, int]]) -> None:
    files = {f"a/{name}": block(name, parent, mtime) for name, parent, mtime in found}
    inventory = Inventory(files.values())
    assert sorted(drain(inventory)) == sorted(files)
    assert (inventory.num_bytes, inventory.evictable_bytes, inventory.num_blocks) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=9))
def test_in_a_forest_no_block_goes_before_its_children(found: Sequence[tuple[int, int]]) -> None:
    parents = {i + 1: min(parent, i) for i, (parent, _) in enumerate(found)}
    files = [block(i + 1, parents[i + 1], mtime) for i, (_, mtime) in enumerate(found)]
    gone: set[int] = set()
    for place in drain(Inventory(files)):
        gone.add(int(place[2:]))
        assert all(child in gone for child, parent in parents.items() if parent == int(place[2:]))
