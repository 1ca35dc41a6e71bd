"""What is kept of requests that are over, in the journal and for the status page."""

import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.engine.request import RequestStats, Trail
from omlx.server.recorder import Recorder, caller, miss_reason
from omlx.server.session import Caller, Course
from omlx.settings.schema import Cache
from omlx.settings.schema import Journal as JournalSettings
from omlx.storage.entry import JournalEntry, MissReason, Part, PartKind, Span
from omlx.storage.history import History
from omlx.storage.tally import DiskTally
from omlx.storage.usage import read_usage
from tests.fakes.engine import PATIENCE_S, say, silent
from tests.fakes.server import Plan, running

NAMES = tuple(f"{i:064x}" for i in range(1, 4))
SPANS = (Span(Part(PartKind.SYSTEM, 0), 3, 300), Span(Part(PartKind.TOOL, 4, "grep"), 300, 990))


def trail(shared: int = 0, nearest: str | None = None) -> Trail:
    return Trail("ab" * 32, 256, NAMES, "cd" * 32, shared, nearest)


def course(**fields: object) -> Course:
    one = Course("r1", "m", 10.0, 1000, Caller("openai", "curl", "s"), spans=SPANS)
    one.outcome, one.admitted, one.trail = "stop", 11.0, trail()
    for name, value in fields.items():
        setattr(one, name, value)
    return one


class Rows:
    """A journal in memory; `gate` holds its thread up."""

    def __init__(self) -> None:
        self.rows: list[JournalEntry] = []
        self.moved: list[dict[str, DiskTally]] = []
        self.is_locked = False
        self.num_lost = 0
        self.is_closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def add(self, entry: JournalEntry) -> JournalEntry:
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.rows.append(entry)
        return entry

    def add_disk(self, moved: dict[str, DiskTally]) -> bool:
        if not self.is_locked:
            self.moved.append(dict(moved))
        return not self.is_locked

    def close(self) -> None:
        self.is_closed = True


def recorder(journal: object = None, *, has_cache: bool = True) -> Recorder:
    return Recorder(journal, clock=lambda: 20.0, wall=lambda: 5000.0, has_cache=has_cache)


# ---- why a miss


@pytest.mark.parametrize(
    ("shared", "nearest", "reason"),
    [
        (0, None, MissReason.COLD),
        (2, "ee" * 32, MissReason.COLD),  # only what the template begins with
        (3, "ee" * 32, MissReason.COLD),
        (4, "ee" * 32, MissReason.DIVERGED),
        (900, "ee" * 32, MissReason.DIVERGED),
        (900, None, MissReason.NONE),  # what was stored ends there
        (999, None, MissReason.NONE),
        (999, "ee" * 32, MissReason.NONE),
    ],
)
def test_reasons(shared: int, nearest: str | None, reason: MissReason) -> None:
    one = course(trail=trail(shared, nearest))
    assert miss_reason(one, has_cache=True) is reason
    assert miss_reason(one, has_cache=False) is MissReason.DISABLED


@pytest.mark.parametrize(
    ("shared", "nearest", "cached", "reason"),
    [
        (999, None, 512, MissReason.SNAPSHOT),
        (999, None, 999, MissReason.NONE),
        (900, None, 512, MissReason.SNAPSHOT),
        (900, "ee" * 32, 512, MissReason.SNAPSHOT),
        (600, "ee" * 32, 512, MissReason.DIVERGED),  # what is new costs more
        (600, None, 512, MissReason.NONE),
        (2, None, 0, MissReason.COLD),
    ],
)
def test_reasons_of_a_model_that_goes_on_from_snapshots(
    shared: int, nearest: str | None, cached: int, reason: MissReason
) -> None:
    one = course(trail=replace(trail(shared, nearest), needs_snapshot=True), cached_memory=cached)
    assert miss_reason(one, has_cache=True) is reason
    rows = Rows()
    keeper = recorder(rows)
    keeper.record(one)
    keeper.close()
    (row,) = rows.rows
    assert (row.snapshot, row.snapshot_cost) == (cached, min(shared, 999) - cached)


def test_reasons_without_a_look_up() -> None:
    assert miss_reason(course(trail=None), has_cache=True) is MissReason.UNCACHEABLE
    assert miss_reason(course(admitted=None, trail=None), has_cache=True) is MissReason.NONE


# ---- rows


def test_a_row_holds_what_is_known() -> None:
    rows, stats = Rows(), RequestStats(1000, 256, 44, 0, 0.5, 0.25, 4.0, 0.0, 5.0, 0.125)
    keeper = recorder(rows)
    one = course(trail=trail(300, "ee" * 32), cached_memory=256, cached_disk=44, prefilled=700)
    one.stats, one.submitted, one.first_token, one.generated = stats, 10.5, 16.0, 9
    keeper.record(one)
    keeper.close()
    (row,) = rows.rows
    assert rows.is_closed
    assert (row.request_id, row.model, row.outcome) == ("r1", "m", "stop")
    assert (row.time, row.ended) == (4990.0, 5000.0)
    assert (row.dialect, row.client, row.session) == ("openai", "curl", "s")
    assert (row.prompt_tokens, row.cached, row.uncached, row.generated) == (1000, 300, 700, 9)
    assert (row.blocks, row.rest, row.block_size) == (NAMES, "cd" * 32, 256)
    assert (row.shared, row.nearest, row.computed) == (300, "ee" * 32, 1000)
    assert row.snapshot is None
    assert row.miss is MissReason.DIVERGED
    assert row.parts is not None and row.parts.ttft_s == 6.0
    assert row.parts.bookkeeping_s == 6.0 - 4.875
    assert (row.spans, row.text) == (SPANS, None)


def test_a_request_that_waited_for_its_model_says_so() -> None:
    stats = RequestStats(1000, 0, 0, 0, 0.5, 0.0, 4.0, 0.0, 5.0)
    one = course(stats=stats, submitted=11.0, first_token=30.0)
    assert one.parts is not None and one.parts.warm_up_s == 0.0
    one.was_ready = False
    assert one.parts is not None
    assert one.parts.warm_up_s == 30.0 - 11.0 - 5.0
    assert one.parts.ttft_s == 20.0


def test_a_request_without_a_token_has_no_parts() -> None:
    assert course().parts is None
    assert course(first_token=3.0).parts is None


def test_the_last_requests_carry_no_text() -> None:
    keeper = recorder()
    for i in range(25):
        diverged = course(request_id=f"r{i}", trail=trail(400, "ee" * 32), prompt="secret")
        keeper.record(diverged)
    recent = keeper.recent()
    assert [one["id"] for one in recent] == [f"r{i}" for i in range(24, 4, -1)]
    assert recent[0] == {
        "id": "r24",
        "time": 4990.0,
        "model": "m",
        "client": "curl",
        "outcome": "stop",
        "prompt_tokens": 1000,
        "cached_memory": 0,
        "cached_disk": 0,
        "uncached": 1000,
        "generated": 0,
        "ttft_s": None,
        "miss": "diverged",
        "part": "tool 4",
    }
    assert "secret" not in str(recent) and "grep" not in str(recent)
    keeper.close()


@pytest.mark.parametrize(
    ("shared", "place"), [(4, "system block 0"), (995, "template"), (500, "tool 4")]
)
def test_the_place_where_a_prompt_left_what_was_stored(shared: int, place: str) -> None:
    keeper = recorder()
    keeper.record(course(trail=trail(shared, "ee" * 32)))
    assert keeper.recent()[0]["part"] == place
    keeper.close()


def test_a_journal_that_hangs_holds_nobody_up() -> None:
    rows = Rows()
    rows.gate.clear()
    keeper = recorder(rows)
    for i in range(1002):
        keeper.record(course(request_id=f"r{i}"))
    assert [one["id"] for one in keeper.recent()] == ["r1001", "r1000"]
    rows.num_lost = 3
    assert keeper.num_lost == 2 + 3
    rows.gate.set()
    keeper.close()


def test_bytes_that_could_not_be_kept_are_kept_with_the_next() -> None:
    rows = Rows()
    keeper = recorder(rows)
    rows.is_locked = True
    keeper.moved({"m": DiskTally(5, 1)})
    keeper._thread.submit(lambda: None).result(PATIENCE_S)  # the thread is past it
    rows.is_locked = False
    keeper.moved({"m": DiskTally(2, 0), "n": DiskTally(1, 0)})
    keeper.moved({})
    keeper.close()
    keeper.moved({"m": DiskTally(9, 9)})
    assert rows.moved == [{"m": DiskTally(7, 1), "n": DiskTally(1, 0)}]


def test_a_recorder_without_a_journal_loses_nothing() -> None:
    keeper = recorder()
    keeper.moved({"m": DiskTally(5, 1)})
    assert keeper.num_lost == 0
    keeper.close()


def test_a_request_that_ends_after_the_server_is_only_remembered() -> None:
    rows = Rows()
    keeper = recorder(rows)
    keeper.close()
    keeper.record(course())
    assert (rows.rows, len(keeper.recent())) == ([], 1)


def test_a_bug_in_the_journal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rows = Rows()
    rows.error = ZeroDivisionError("inside")
    keeper = recorder(rows)
    with caplog.at_level(logging.ERROR):
        keeper.record(course())
        keeper.close()
    assert "a row of the journal was lost" in caplog.text


# ---- who asks


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        ("claude-cli/2.0.1 (external, cli)", "claude-cli"),
        ("OpenAI/Python 2.1", "OpenAI"),
        ("codex_exec/0.5", "codex_exec"),
        ("", ""),
        ("<script>", ""),
        ("x" * 90, "x" * 40),
    ],
)
def test_families_of_clients(agent: str, client: str) -> None:
    assert caller({"user-agent": agent}, "openai").client == client


def test_sessions() -> None:
    headers = {"session-id": "b", "x-claude-code-session-id": "a", "x-affinity": "c"}
    assert caller(headers, "anthropic") == Caller("anthropic", "", "a")
    assert caller({"x-session-id": "x" * 500}, "openai").session == "x" * 100
    assert caller({}, "openai").session == ""


# ---- through a server


def test_a_request_leaves_a_row_and_shows_among_the_last(tmp_path: Path) -> None:
    plan = Plan(journal_path=tmp_path / "state" / "journal.sqlite3")
    plan.engines[0].script = say("ok", memory=8, trail=trail(8, "ee" * 32))
    headers = {"user-agent": "tester/1", "x-session-id": "abc"}
    with running(plan) as server:
        body = {"model": "fake", "messages": [{"role": "user", "content": "marker-text"}]}
        response = server.http.post("/v1/chat/completions", json=body, headers=headers)
        request_id = response.headers["x-request-id"]
        server.message("other")
        server.stop()
    history = History(tmp_path / "state" / "journal.sqlite3")
    row = history.find(request_id)
    assert row is not None
    assert (row.client, row.session, row.dialect) == ("tester", "abc", "openai")
    assert (row.outcome, row.generated, row.cached_memory) == ("stop", 2, 8)
    assert row.spans == (Span(Part(PartKind.MESSAGE, 0, "user"), 5, 16),)
    assert row.miss is MissReason.DIVERGED
    assert row.parts is not None and row.parts.ttft_s > 0
    last = history.last()
    assert last is not None and last.dialect == "anthropic"
    data = b"".join(file.read_bytes() for file in (tmp_path / "state").iterdir())
    assert b"marker-text" not in data
    recent = server.service.status()["recent"]
    assert [one["id"] for one in recent] == [last.request_id, row.request_id]
    assert "marker-text" not in str(recent)


def test_texts_are_kept_where_the_user_wants_it(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with running(Plan(journal_path=path, journal=JournalSettings(text=True))) as server:
        server.chat("marker-text")
        server.stop()
    last = History(path).last()
    assert last is not None and last.text == "user:marker-text\nassistant:"


def test_an_aborted_request_leaves_a_row(tmp_path: Path) -> None:
    plan = Plan(journal_path=tmp_path / "j")
    plan.engines[0].script = silent
    with running(plan) as server:
        body = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "a"}]}
        with server.http.stream("POST", "/v1/chat/completions", json=body):
            server.engine.wait_for(lambda engine: len(engine.submitted) == 1)
        server.engine.wait_for(lambda engine: len(engine.aborted) == 1)
        server.stop()
    last = History(tmp_path / "j").last()
    assert last is not None
    assert (last.outcome, last.parts, last.miss) == ("aborted", None, MissReason.NONE)
    assert not last.is_admitted
    whole = read_usage(tmp_path / "j", "").whole
    assert (whole.requests, whole.turns, whole.prompt_tokens) == (1, 0, 0)


def test_a_server_without_a_cache_says_so(tmp_path: Path) -> None:
    plan = Plan(journal_path=tmp_path / "j", cache=Cache(enabled=False))
    with running(plan) as server:
        server.chat()
        server.stop()
    last = History(tmp_path / "j").last()
    assert last is not None and last.miss is MissReason.DISABLED


def test_a_cache_of_two_tiers_without_bytes_is_none(tmp_path: Path) -> None:
    plan = Plan(journal_path=tmp_path / "j", cache=Cache(memory_size=0, max_size=0))
    with running(plan) as server:
        server.chat()
        server.stop()
    last = History(tmp_path / "j").last()
    assert last is not None and last.miss is MissReason.DISABLED


def test_a_journal_that_can_not_be_written_changes_no_answer(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    with running(Plan(journal_path=tmp_path / "j")) as server:
        assert server.chat().status_code == 200
        assert server.chat().status_code == 200
