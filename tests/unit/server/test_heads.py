"""The heads that most requests shared, from a journal's rows and a store's files."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.cache.hashing import chain_hashes, token_array
from omlx.cache.salting import salted_root
from omlx.errors import StoreError
from omlx.server.heads import StoredHeads
from omlx.storage.entry import JournalEntry, Part, PartKind, Span
from omlx.storage.journal import Journal
from omlx.storage.layout import BlockHash, BlockKey, block_path
from tests.fakes.blocks import DIRECTORY, ROOT
from tests.fakes.cache import BLOCK, Rig

AGENT = list(range(100, 100 + 2 * BLOCK + 2))  # two blocks and two tokens
OTHER = list(range(300, 300 + BLOCK))


class Kept:
    """A store and a journal of requests whose prompts are in it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.sqlite3"
        self.rig = Rig()
        self.now = 1000.0
        self.journal = Journal(self.path, max_bytes=10**9, max_age_s=10**6, clock=lambda: self.now)

    def ask(
        self, head: Sequence[int], rest: Sequence[int], salt: str = "", **changed: object
    ) -> JournalEntry:
        """A request that was stored, with the row of it."""
        tokens = [*head, *rest]
        self.rig.compute(tokens, salt=salt)
        self.rig.pass_delay()
        self.now += 1
        names = chain_hashes(salted_root(ROOT, salt), token_array(tokens[:-1]), BLOCK)
        entry = JournalEntry(
            request_id=f"r{self.now}",
            time=self.now,
            ended=self.now,
            model="tiny",
            outcome="stop",
            prompt_tokens=len(tokens),
            root=ROOT.hex(),
            block_size=BLOCK,
            blocks=tuple(name.hex() for name in names),
            salt=salt,
            spans=(
                Span(Part(PartKind.SYSTEM, 0), 0, len(head)),
                Span(Part(PartKind.MESSAGE, 0, "user"), len(head), len(tokens)),
            ),
        )
        entry = replace(entry, **changed)  # pyright: ignore
        self.journal.add(entry)
        return entry

    def remove(self, tokens: Sequence[int]) -> None:
        """Drop the file of the last full block of these."""
        names = chain_hashes(ROOT, token_array(tokens), BLOCK)
        parent = names[-2] if len(names) > 1 else BlockHash(ROOT)
        self.rig.fs.unlink(block_path(DIRECTORY, ROOT, BlockKey(parent, names[-1], BLOCK)))

    def most_used(self, num: int = 9, model: str = "tiny") -> list[list[int]]:
        heads = StoredHeads(self.path, DIRECTORY, self.rig.fs).most_used(model, num)
        return [list(head.tokens) for head in heads]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.journal.close()


def test_the_most_shared_come_first_and_what_only_one_had_does_not_count(kept: Kept) -> None:
    kept.ask(OTHER, [1, 2])
    kept.ask(OTHER, [3, 4])
    for idx in range(3):
        kept.ask(AGENT, [idx, 9, 9, 9, 9])
    kept.ask(list(range(500, 520)), [1])
    assert kept.most_used() == [AGENT, OTHER]
    assert kept.most_used(1) == [AGENT]
    assert kept.most_used(0) == []
    assert kept.most_used(model="another") == []


def test_the_end_within_a_block_is_that_of_its_requests(kept: Kept) -> None:
    for idx in range(2):
        kept.ask(AGENT, [idx])  # their prompts end in the head's last block
    assert kept.most_used() == [AGENT], "from the tails that are stored"
    kept.ask(AGENT, [7] * BLOCK)
    assert kept.most_used() == [AGENT]


def test_as_far_as_blocks_are_there(kept: Kept) -> None:
    for idx in range(2):
        kept.ask(AGENT, [idx, 9, 9, 9, 9])
    kept.remove(AGENT[: 2 * BLOCK])
    assert kept.most_used() == [AGENT[:BLOCK]]
    kept.remove(AGENT[:BLOCK])
    assert kept.most_used() == []


def test_of_the_files_that_a_model_has_now(kept: Kept) -> None:
    for idx in range(3):
        kept.ask(OTHER, [idx], root="11" * 32)
    for idx in range(2):
        kept.ask(AGENT, [idx])
    assert kept.most_used() == [AGENT]


@pytest.mark.parametrize(
    "changed",
    [
        {"root": "zz"},
        {"root": "11"},
        {"root": "../../etc"},
        {"blocks": ("00",)},
        {"block_size": 0},
        {"block_size": -4},
        {"spans": ()},
        {"spans": (Span(Part(PartKind.SYSTEM, 0), 0, 10**9),)},
        {"spans": (Span(Part(PartKind.SYSTEM, 0), 0, -5),)},
        {"block_size": 10**9},
        {"blocks": ()},
    ],
)
def test_rows_that_make_no_sense_are_passed_over(kept: Kept, changed: dict[str, object]) -> None:
    for idx in range(2):
        kept.ask(AGENT, [idx])
    for idx in range(3):
        kept.ask(OTHER, [idx], **changed)
    found = kept.most_used()
    assert found == [AGENT] or (found == [] and "root" not in changed)


def test_a_journal_that_is_not_there_has_none_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept.most_used() == []
    kept.path.write_bytes(b"this is no database, and long enough to tell" * 100)
    with pytest.raises(StoreError, match="can't be read"):
        kept.most_used()


def test_those_with_a_salt_have_heads_of_their_own(kept: Kept) -> None:
    """P22: also where a head is shorter than a block, so that its row names none."""
    short = AGENT[:2]
    for salt, rest in (("a", [1, 2]), ("a", [3, 4]), ("b", [1, 2]), ("", [5, 6])):
        kept.ask(AGENT, rest, salt)
        kept.ask(short, [*rest, 8, 9, 10], salt)
    heads = StoredHeads(kept.path, DIRECTORY, kept.rig.fs).most_used("tiny", 9)
    assert {(head.salt, len(head.tokens)) for head in heads} == {("a", len(AGENT)), ("a", 2)}
