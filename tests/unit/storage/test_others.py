"""What a model left in roots that it can't use any more: counted by reason, said once."""

import json
import logging
from collections.abc import Mapping

import pytest

from omlx.storage.layout import ROOT_FILE, root_dir
from omlx.storage.others import OtherReason, count_others, warn_of_others
from tests.fakes.blocks import (
    DIRECTORY,
    OTHER_ROOT,
    ROOT,
    Clock,
    Shelf,
    make_chain,
    make_state,
    shelf_and_fs,
)
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem

LAYOUT = {"block_size": "4", "sections": "kv.0"}
OURS = {"model": "tiny", "fingerprint": "ab", "layout": LAYOUT}
CASES: dict[str, tuple[Mapping[str, object], OtherReason | None]] = {
    "format": ({"format": "0", "fingerprint": "cd"}, OtherReason.FORMAT),
    "no format": ({"format": None}, OtherReason.FORMAT),
    "weights": ({"fingerprint": "cd", "layout": {}}, OtherReason.FINGERPRINT),
    "block size": ({"layout": {**LAYOUT, "block_size": "8"}}, OtherReason.BLOCK_SIZE),
    "layers": ({"layout": {**LAYOUT, "sections": "kv.0 kv.1"}}, OtherReason.LAYOUT),
    "no layout": ({"layout": None}, OtherReason.BLOCK_SIZE),
    "another model": ({"model": "big"}, None),
    "no model": ({"model": None}, None),
}


def stocked(theirs: Mapping[str, object]) -> MemoryFileSystem:
    """Three blocks of ours, two blocks and a state of another root that says this of itself."""
    clock = Clock()
    memory = MemoryFileSystem(clock)
    for root, length in ((ROOT, 3), (OTHER_ROOT, 2)):
        shelf = Shelf(memory, clock, root=root)
        blocks = make_chain(length, root=root)
        for block in blocks:
            shelf.put(block)
    shelf.put(make_state(blocks[1]))
    described = {"format": "1", **OURS, **theirs}
    memory.write(root_dir(DIRECTORY, OTHER_ROOT) / ROOT_FILE, json.dumps(described).encode())
    return memory


@pytest.mark.parametrize("name", CASES)
def test_files_are_counted_by_reason(name: str, caplog: pytest.LogCaptureFixture) -> None:
    theirs, reason = CASES[name]
    memory = stocked(theirs)
    before = sorted(memory.files())
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        warn_of_others(DIRECTORY, memory, ROOT, OURS)
    assert count_others(DIRECTORY, memory, ROOT, OURS) == ({reason: 3} if reason else {})
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (reason is not None)
    assert reason is None or (f"3 with {reason.value}" in messages[0] and "tiny" in messages[0])
    assert sorted(memory.files()) == before


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'{"model": 3}'])
def test_a_root_that_does_not_say_whose_it_is_is_passed_over(text: bytes) -> None:
    memory = stocked({})
    memory.write(root_dir(DIRECTORY, OTHER_ROOT) / ROOT_FILE, text)
    assert count_others(DIRECTORY, memory, ROOT, OURS) == {}


def test_a_directory_that_is_not_there_or_empty_has_none() -> None:
    shelf, _, memory = shelf_and_fs()
    assert count_others(DIRECTORY / "gone", memory, ROOT, OURS) == {}
    assert count_others(DIRECTORY, memory, ROOT, OURS) == {}
    assert shelf.store.index().num_blocks == 0


def test_whichever_call_fails_there_is_an_answer() -> None:
    memory = stocked({"fingerprint": "cd"})
    healthy = FaultFileSystem(memory)
    count_others(DIRECTORY, healthy, ROOT, OURS)
    assert len(healthy.calls) >= 8
    for n in range(1, len(healthy.calls) + 1):
        counts = count_others(DIRECTORY, FaultFileSystem(memory, n), ROOT, OURS)
        assert 0 <= counts.get(OtherReason.FINGERPRINT, 0) <= 3
        assert not memory.open_files or healthy.calls[n - 1] == "close"
        memory.open_files.clear()
