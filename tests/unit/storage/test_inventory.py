"""The order in which blocks go: leaves first, oldest first."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from omlx.storage.inventory import Inventory
from omlx.storage.layout import BlockKind, BlockName
from omlx.storage.scan import FileKind, FoundFile


def block(name: int, parent: int, mtime: float, root16: str = "a") -> FoundFile:
    filename = BlockName(f"{name:016x}" + "0" * 16, f"{parent:016x}", 4).filename
    return FoundFile(f"blocks/{root16 * 16}/00/{filename}", 10, mtime, FileKind.BLOCK)


def state(name: int, parent: int, mtime: float) -> FoundFile:
    filename = BlockName(f"{name:016x}" + "0" * 16, f"{parent:016x}", 4, BlockKind.STATE).filename
    return FoundFile(f"blocks/{'a' * 16}/00/{filename}", 7, mtime, FileKind.STATE)


def short(place: str) -> str:
    """Root and name of a block, as "a/3"."""
    if not place.startswith("blocks"):
        return place
    return f"{place[7]}/{int(place[27:43], 16)}" + ("s" if "state" in place else "")


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
    second = second._replace(place=second.place.replace("/00/", "/01/"))
    inventory = Inventory([block(1, 0, 1), first, second, block(3, 2, 4)])
    inventory.remove(first.place)
    assert drain(inventory) == ["a/3", "a/2", "a/1"]


def test_a_state_goes_before_the_block_that_it_ends_and_of_one_age_first() -> None:
    files = [block(1, 0, 5), block(2, 1, 5), block(3, 2, 5), state(3, 2, 9), state(1, 0, 5)]
    assert drain(Inventory(files)) == ["a/1s", "a/3s", "a/3", "a/2", "a/1"]
    assert drain(Inventory([block(2, 0, 5), state(1, 0, 5)])) == ["a/1s", "a/2"]


def test_states_without_blocks_go_by_their_age_alone() -> None:
    """A model of recurrent layers has nothing else."""
    assert drain(Inventory([state(1, 0, 3), state(2, 1, 1), state(3, 2, 2)])) == [
        "a/2s",
        "a/3s",
        "a/1s",
    ]


def test_states_have_figures_and_an_order_of_their_own() -> None:
    inventory = Inventory([block(1, 0, 1), state(1, 0, 3), state(2, 1, 2)])
    assert (inventory.num_blocks, inventory.num_states, inventory.state_bytes) == (1, 2, 14)
    oldest = inventory.next_state()
    assert oldest is not None and short(oldest.place) == "a/2s"
    inventory.add(state(2, 1, 9))  # it was touched
    order: list[str] = []
    while found := inventory.next_state():
        order.append(short(found.place))
        inventory.remove(found.place)
    assert order == ["a/1s", "a/2s"]
    assert (inventory.num_blocks, inventory.num_states, inventory.state_bytes) == (1, 0, 0)
    assert drain(inventory) == ["a/1"]


def test_a_state_that_is_set_aside_is_no_more_in_any_order() -> None:
    inventory = Inventory([block(1, 0, 1), state(1, 0, 3)])
    oldest = inventory.next_state()
    assert oldest is not None
    inventory.set_aside(oldest.place)
    assert inventory.next_state() is None
    assert drain(inventory) == ["a/1"]


def test_what_is_read_of_a_folder_replaces_what_was_known() -> None:
    old = [block(1, 0, 1), block(2, 1, 2), state(2, 1, 2)]
    folder = old[0].place[: old[0].place.rfind("/") + 1]
    notes = FoundFile("notes", 5, 1, FileKind.UNKNOWN)
    inventory = Inventory([*old, notes])
    assert inventory.places_in(folder) == {file.place for file in old}
    assert not inventory.replace(folder, old)
    assert not inventory.replace(folder, [block(1, 0, 7)], {file.place for file in old[1:]})
    assert inventory.replace(folder, [block(3, 2, 9)], {old[0].place})
    assert inventory.num_bytes == 25 and drain(inventory) == ["a/1", "a/3"]
    assert inventory.replace("", [])
    assert inventory.num_bytes == 0 and not inventory.replace("elsewhere/", [])


def test_what_was_set_aside_returns_when_it_is_read_again() -> None:
    found = block(1, 0, 1)
    inventory = Inventory([found])
    inventory.set_aside(found.place)
    assert inventory.next_leaf() is None and inventory.evictable_bytes == 0
    inventory.replace(found.place[: found.place.rfind("/") + 1], [found])
    assert inventory.evictable_bytes == 10 and drain(inventory) == ["a/1"]


def test_an_order_that_is_never_asked_does_not_grow_with_every_touch() -> None:
    inventory = Inventory([block(1, 0, 1), block(2, 0, 1)])
    inventory.next_leaf()
    for mtime in range(5000):
        inventory.add(block(1, 0, mtime))
    order = inventory._order
    assert order is not None and len(order._leaves._heap) < 2000
    inventory.add(block(2, 0, 1))
    assert drain(inventory) == ["a/2", "a/1"]


names = st.integers(0, 6)


@given(st.lists(st.tuples(names, names, st.integers(0, 5), st.booleans()), max_size=20))
def test_any_set_of_files_is_drained_to_nothing(
    found: Sequence[tuple[int, int, int, bool]],
) -> None:
    made = [(state if is_state else block)(*numbers) for *numbers, is_state in found]
    files = {short(file.place): file for file in made}
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
