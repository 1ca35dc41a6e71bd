"""What `cache inspect` and `cache prune` learn and do without a server."""

import errno
from pathlib import Path

import pytest

from omlx.storage.record import BadReason
from omlx.storage.scan import FileKind
from omlx.storage.survey import Pruned, PrunePlan, execute, plan_prune, strays, survey
from tests.fakes.blocks import (
    DIRECTORY,
    OTHER_ROOT,
    ROOT,
    Block,
    Clock,
    Shelf,
    make_block,
    make_chain,
    make_state,
)
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem

CHAIN = make_chain(3)
OTHERS = make_chain(2, root=OTHER_ROOT, seed=1)
TAIL = make_block(CHAIN[2].key.name, 5, count=2)
DAY = 86_400.0


@pytest.fixture
def fs() -> MemoryFileSystem:
    """Two models: a chain of three blocks and a tail, a day apart; then a chain of two."""
    clock = Clock()
    memory = MemoryFileSystem(clock)
    shelf = Shelf(memory, clock)
    for block in (*CHAIN, TAIL):
        shelf.put(block)
        clock.now += DAY
    other = Shelf(memory, clock, root=OTHER_ROOT)
    for block in OTHERS:
        other.put(block)
    return memory


def plan(fs: MemoryFileSystem, **wanted: object) -> PrunePlan:
    return plan_prune(
        DIRECTORY,
        fs,
        now=fs.clock(),
        is_alive=lambda pid: pid != 666,
        **wanted,  # type: ignore[arg-type]
    )


def blocks_of(found: PrunePlan) -> list[Path]:
    kinds = (FileKind.BLOCK, FileKind.OTHER_BLOCK)
    return [DIRECTORY / file.place for file in found.files if file.kind in kinds]


def paths(*blocks: Block) -> list[Path]:
    return [block.path(OTHER_ROOT if block in OTHERS else ROOT) for block in blocks]


def test_each_root_is_described(fs: MemoryFileSystem) -> None:
    found = {root.root16: root for root in survey(DIRECTORY, fs)}
    assert set(found) == {ROOT.hex()[:16], OTHER_ROOT.hex()[:16]}
    root = found[ROOT.hex()[:16]]
    assert root.model == "tiny" and root.description["root"] == ROOT.hex()
    assert (root.num_blocks, root.num_tails, root.num_tokens) == (4, 1, 14)
    assert root.num_bytes == sum(len(fs.content(path)) for path in paths(*CHAIN, TAIL))
    assert root.newest is not None and root.oldest == root.newest - 3 * DAY
    assert root.bad == {} and root.num_other == 0
    assert found[OTHER_ROOT.hex()[:16]].num_tokens == 8


def test_bad_files_are_counted_by_reason_and_left_alone(fs: MemoryFileSystem) -> None:
    fs.content(CHAIN[0].path()).clear()
    del fs.content(CHAIN[1].path())[4200:]
    fs.write(CHAIN[2].path(), bytes(fs.content(TAIL.path())))
    fs.content(TAIL.path())[8] = 0
    fs.write(TAIL.path().parent / "new.state.safetensors", b"12345")
    before = sorted(fs.files())
    root = next(root for root in survey(DIRECTORY, fs) if root.model and root.num_other)
    assert root.bad == {
        BadReason.EMPTY: 1,
        BadReason.TRUNCATED: 1,
        BadReason.FOREIGN: 1,
        BadReason.HEADER: 1,
    }
    assert (root.num_blocks, root.num_tokens, root.num_other) == (0, 0, 1)
    assert root.oldest is None and root.newest is None
    assert root.num_bytes == 5 + sum(len(fs.content(p)) for p in paths(*CHAIN, TAIL))
    assert sorted(fs.files()) == before


def test_states_are_counted_apart_and_planned_before_their_blocks(fs: MemoryFileSystem) -> None:
    clock = Clock(fs.clock())
    states = [make_state(CHAIN[2]), make_state(TAIL)]
    for state in states:
        Shelf(fs, clock).put(state)
    root = next(root for root in survey(DIRECTORY, fs) if root.root16 == ROOT.hex()[:16])
    assert (root.num_blocks, root.num_tails, root.num_states, root.num_tokens) == (4, 1, 2, 14)
    assert root.num_bytes == sum(len(fs.content(p)) for p in paths(*CHAIN, TAIL, *states))
    files = [DIRECTORY / file.place for file in plan(fs, everything=True).files]
    for state, block in zip(states, (CHAIN[2], TAIL), strict=True):
        assert files.index(state.path()) < files.index(block.path())


def test_files_of_another_format_are_no_bad_files(fs: MemoryFileSystem) -> None:
    for block in (CHAIN[0], TAIL):
        content = fs.content(block.path())
        content[:] = content.replace(b'"format":"1"', b'"format":"0"')
    root = next(root for root in survey(DIRECTORY, fs) if root.root16 == ROOT.hex()[:16])
    assert (root.bad, root.num_other, root.num_blocks) == ({}, 2, 2)
    assert CHAIN[0].path() in blocks_of(plan(fs, everything=True)), "and they may go"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 60_000, b'{"model": 3}'])
def test_a_root_without_a_readable_description_is_still_listed(
    fs: MemoryFileSystem, content: bytes
) -> None:
    fs.write(CHAIN[0].path().parent.parent / "root.json", content)
    root = next(root for root in survey(DIRECTORY, fs) if root.root16 == ROOT.hex()[:16])
    assert root.model is None
    assert (root.num_blocks, root.num_tails) == (4, 1)


def test_an_unreadable_file_is_a_reason_and_a_vanished_one_is_none(fs: MemoryFileSystem) -> None:
    for error, bad in ((errno.EACCES, {BadReason.UNREADABLE: 1}), (errno.ENOENT, {})):
        faulty = FaultFileSystem(fs)
        faulty.fail_next("open", "once", error)
        roots = survey(DIRECTORY, faulty)
        assert [root.bad for root in roots if root.num_tokens < 8 or root.num_blocks == 3] == [bad]


def test_no_directory_holds_nothing(fs: MemoryFileSystem) -> None:
    assert survey(Path("/none"), fs) == []
    assert strays(Path("/none"), fs).num_unknown == 0
    assert plan_prune(Path("/none"), fs, now=0.0, everything=True).files == ()


def test_strays_are_temporary_and_unknown_files(fs: MemoryFileSystem) -> None:
    fs.write(CHAIN[0].path().parent / ".tmp-1-1", bytes(10))
    fs.write(DIRECTORY / "notes", bytes(7))
    found = strays(DIRECTORY, fs)
    assert (found.num_temps, found.temp_bytes) == (1, 10)
    assert (found.num_unknown, found.unknown_bytes) == (1, 7)


def test_nothing_asked_removes_only_what_is_stale(fs: MemoryFileSystem) -> None:
    shard = CHAIN[0].path().parent
    fs.write(shard / ".tmp-666-1", bytes(10))
    fs.write(shard / ".tmp-12-1", bytes(10))
    assert [DIRECTORY / file.place for file in plan(fs).files] == [shard / ".tmp-666-1"]


def test_everything_goes_leaf_first_and_leaves_no_empty_directory(fs: MemoryFileSystem) -> None:
    fs.write(DIRECTORY / "notes", bytes(7))
    found = plan(fs, everything=True)
    order = blocks_of(found)
    assert order == paths(TAIL, *reversed(CHAIN), *reversed(OTHERS))
    done = execute(found, DIRECTORY, fs)
    assert done == Pruned(len(found.files), found.num_bytes, 0)
    assert fs.files() == [DIRECTORY / "notes"]
    assert sorted(fs.names(DIRECTORY)) == ["blocks", "notes"]
    assert fs.names(DIRECTORY / "blocks") == []


def test_a_model_is_chosen_by_its_description(fs: MemoryFileSystem) -> None:
    path = OTHERS[0].path(OTHER_ROOT).parent.parent / "root.json"
    fs.write(path, b'{"model": "other"}')
    assert blocks_of(plan(fs, model="other")) == paths(*reversed(OTHERS))
    assert path in [DIRECTORY / file.place for file in plan(fs, model="other").files]
    assert plan(fs, model="nothing").files == ()
    both = plan(fs, model="other", max_bytes=10**9)
    assert both.files == ()


def test_a_size_is_for_the_whole_directory(fs: MemoryFileSystem) -> None:
    fs.write(DIRECTORY / "notes", bytes(700))
    most = fs.used_bytes() - len(fs.content(TAIL.path())) - 1
    found = plan(fs, max_bytes=most)
    assert blocks_of(found) == paths(TAIL, CHAIN[2])
    execute(found, DIRECTORY, fs)
    assert fs.used_bytes() <= most
    assert plan(fs, max_bytes=most).files == ()
    assert len(blocks_of(plan(fs, max_bytes=0))) == 4


def test_an_age_counts_from_the_last_touch_and_keeps_chains_whole(fs: MemoryFileSystem) -> None:
    assert blocks_of(plan(fs, older_than_s=0.5 * DAY)) == paths(TAIL, *reversed(CHAIN))
    assert blocks_of(plan(fs, older_than_s=1.5 * DAY)) == []
    fs.unlink(TAIL.path())
    assert blocks_of(plan(fs, older_than_s=1.5 * DAY)) == paths(*reversed(CHAIN))
    fs.utime(CHAIN[2].path(), fs.clock())
    assert blocks_of(plan(fs, older_than_s=1.5 * DAY)) == []


def test_age_and_size_together_make_both_hold(fs: MemoryFileSystem) -> None:
    found = plan(fs, older_than_s=0.5 * DAY, max_bytes=5000)
    assert blocks_of(found) == paths(TAIL, *reversed(CHAIN), OTHERS[1])


def test_a_prune_beside_a_server_meets_files_that_vanish_or_can_not_go(
    fs: MemoryFileSystem,
) -> None:
    found = plan(fs, everything=True)
    fs.unlink(CHAIN[1].path())
    faulty = FaultFileSystem(fs)
    faulty.fail_next("unlink", "once", errno.EACCES)
    late = make_block(ROOT, 99)
    Shelf(fs).put(late)
    done = execute(found, DIRECTORY, faulty)
    assert (done.num_failed, done.num_files) == (1, len(found.files) - 2)
    assert late.path() in fs.files()
