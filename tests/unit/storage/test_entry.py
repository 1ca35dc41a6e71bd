"""The values of a journal's row: names, sums, spans as text, and which blocks are whose."""

import pytest

from omlx.storage.entry import (
    JournalEntry,
    Part,
    PartKind,
    Span,
    TtftParts,
    changes_from,
    changes_text,
    spans_from,
    spans_text,
)

SPANS = (
    Span(Part(PartKind.SYSTEM, 0), 3, 10),
    Span(Part(PartKind.TOOL, 2, 'a "b" é'), 10, 40),
    Span(Part(PartKind.MESSAGE, 1, "user"), 43, 50),
)
ENTRY = JournalEntry(
    request_id="r",
    time=1.0,
    ended=2.0,
    model="m",
    outcome="stop",
    prompt_tokens=1000,
    cached_memory=300,
    cached_disk=100,
    block_size=256,
    blocks=("aa", "bb", "cc"),
    rest="dd",
    shared=400,
    computed=1000,
)


def test_parts_have_names_for_people() -> None:
    names = [str(span.part) for span in SPANS]
    assert names == ["system block 0", 'tool 2 "a "b" é"', "message 1 (user)"]


def test_spans_survive_as_text() -> None:
    assert spans_from(spans_text(SPANS)) == SPANS
    assert spans_text(()) == "[]"


@pytest.mark.parametrize("text", ["", "{", "{}", "7", '[["odd", 1, "x", 1, 2], [1], 5]'])
def test_other_texts_hold_no_spans(text: str) -> None:
    assert spans_from(text) == ()


@pytest.mark.parametrize("changes", [{}, {"attribution": 1, "tool_order": 12}])
def test_changes_are_read_back(changes: dict[str, int]) -> None:
    assert changes_from(changes_text(changes)) == changes


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"a": "b"}', "[" * 100_000])
def test_other_texts_hold_no_changes(text: str) -> None:
    assert changes_from(text) == {}


def test_the_parts_of_ttft_sum_to_it() -> None:
    parts = TtftParts(0.5, 0.25, 0.125, 1.0, 2.0, 4.0)
    assert parts.ttft_s == 7.875
    assert list(parts.by_name()) == [
        "queue",
        "load",
        "warm_up",
        "restore",
        "prefill",
        "bookkeeping",
    ]


def test_the_block_of_a_token() -> None:
    assert [ENTRY.block_at(i) for i in (0, 255, 256, 767, 768, 999)] == [
        "aa",
        "aa",
        "bb",
        "cc",
        "dd",
        "dd",
    ]
    assert ENTRY.block_at(1024) is None
    assert JournalEntry(request_id="r", time=1, ended=1, model="m", outcome="").block_at(0) is None


def test_figures() -> None:
    assert (ENTRY.cached, ENTRY.uncached) == (400, 600)


def test_what_a_request_added() -> None:
    assert ENTRY.computed_blocks() == ["bb", "cc", "dd"]
    cut = JournalEntry(
        request_id="r",
        time=1.0,
        ended=2.0,
        model="m",
        outcome="aborted",
        prompt_tokens=1000,
        block_size=256,
        blocks=("aa", "bb", "cc"),
        rest="dd",
        computed=600,
    )
    assert cut.computed_blocks() == ["aa", "bb"], "an aborted prefill left two whole blocks"
    nothing = JournalEntry(request_id="r", time=1, ended=1, model="m", outcome="")
    assert nothing.computed_blocks() == []


@pytest.mark.parametrize(
    ("shared", "snapshot", "cost"), [(500, None, 0), (500, 500, 0), (500, 256, 244), (9999, 0, 999)]
)
def test_what_a_snapshot_cost(shared: int, snapshot: int | None, cost: int) -> None:
    entry = JournalEntry(
        request_id="r", time=1, ended=1, model="m", outcome="", prompt_tokens=1000, shared=shared,
        snapshot=snapshot,
    )  # fmt: skip
    assert entry.snapshot_cost == cost
