"""Daily totals: equal to the rows, there when those are gone, bounded, right after kill -9."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.errors import StoreError
from omlx.storage.entry import JournalEntry, TtftParts
from omlx.storage.journal import MIGRATIONS, Journal
from omlx.storage.tally import OTHER, DiskTally, Tally, day_of, tally_of
from omlx.storage.usage import read_usage
from tests.fakes.blocks import Clock

DAY = 86_400.0
ENTRY = JournalEntry(
    request_id="r",
    time=20_000 * DAY + 5,
    ended=20_000 * DAY + 9,
    model="m",
    outcome="stop",
    client="codex",
    key="laptop",
    prompt_tokens=1000,
    cached_memory=300,
    cached_disk=100,
    computed=1000,
    generated=7,
    parts=TtftParts(0.5, 0.25, 0.0, 0.125, 2.0, 0.0625),
)
TODAY = day_of(ENTRY.time)


def journal(path: Path, *, now: float = ENTRY.time, **limits: float) -> Journal:
    limits = {"max_bytes": 10**9, "max_age_s": 30 * DAY, **limits}
    return Journal(path, clock=Clock(now), lock_timeout_s=0.0, **limits)


def test_a_request_is_added_to_its_day(tmp_path: Path) -> None:
    book = journal(tmp_path / "j")
    for entry in (ENTRY, ENTRY, replace(ENTRY, client="curl"), replace(ENTRY, key="")):
        book.add(entry)
    book.close()
    usage = read_usage(tmp_path / "j", TODAY)
    assert usage.days == [TODAY]
    assert {(one.model, one.client, one.key): one.tally.turns for one in usage.requests} == {
        ("m", "codex", "laptop"): 2, ("m", "curl", "laptop"): 1, ("m", "codex", ""): 1,
    }  # fmt: skip
    whole = usage.whole
    assert (whole.requests, whole.answers, whole.turns, whole.started) == (4, 4, 4, 4)
    assert (whole.prompt_tokens, whole.cached, whole.computed) == (4000, 1600, 2400)
    assert (whole.generated, whole.prefilled, whole.long_prefilled) == (28, 2400, 2400)
    assert (whole.queue_s, whole.prefill_s, whole.long_prefill_s) == (2.0, 8.0, 8.0)
    assert whole.prefill_rate == 300
    assert [*usage.by(lambda one: one.client)] == ["codex", "curl"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"outcome": "length"}, {"answers": 1}),
        ({"outcome": "aborted", "parts": None, "computed": 500},
         {"answers": 0, "computed": 100, "started": 0, "prefilled": 0, "prefill_s": 0.0}),
        # It never left the queue: its prompt was not looked at.
        ({"outcome": "aborted", "parts": None, "is_admitted": False, "computed": 0,
          "cached_memory": 0, "cached_disk": 0, "generated": 0},
         {"turns": 0, "prompt_tokens": 0, "computed": 0, "requests": 1}),
        ({"cached_memory": 900}, {"long_prefilled": 0, "long_prefill_s": 0.0, "prefilled": 0}),
    ],
)  # fmt: skip
def test_what_one_request_adds(changes: dict, expected: dict) -> None:
    tally = tally_of(replace(ENTRY, **changes))
    assert {name: getattr(tally, name) for name in expected} == expected


def test_a_rate_is_of_long_prefills_where_there_are_any() -> None:
    short, long = Tally(prefilled=10, prefill_s=1.0), Tally(
        prefilled=1000, prefill_s=2.0, long_prefilled=1000, long_prefill_s=2.0
    )  # fmt: skip
    assert Tally().prefill_rate is None
    assert short.prefill_rate == 10
    assert (short + long).prefill_rate == 500


ENTRIES = st.builds(
    lambda **changes: replace(ENTRY, **changes),
    time=st.floats(19_990 * DAY, 20_001 * DAY),
    model=st.sampled_from(["m", "n"]),
    client=st.sampled_from(["", "codex", "curl"]),
    key=st.sampled_from(["", "laptop"]),
    outcome=st.sampled_from(["stop", "length", "aborted", "failed"]),
    is_admitted=st.booleans(),
    prompt_tokens=st.integers(400, 3000),
    computed=st.integers(400, 3000),
    generated=st.integers(0, 9),
    parts=st.none() | st.just(ENTRY.parts),
)


@settings(max_examples=25)
@given(st.lists(ENTRIES, max_size=12))
def test_totals_are_the_sums_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, entries: list[JournalEntry]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    book = journal(path, max_age_s=10**9)
    for entry in entries:
        book.add(entry)
    book.close()
    usage = read_usage(path, "") if entries else None
    expected = sum(map(tally_of, entries), Tally())
    found = usage.whole if usage else Tally()
    for one in fields(Tally):
        assert getattr(found, one.name) == pytest.approx(getattr(expected, one.name)), one.name
    assert (usage.days if usage else []) == sorted({day_of(entry.time) for entry in entries})


def test_totals_outlive_the_rows(tmp_path: Path) -> None:
    book = journal(tmp_path / "j", now=ENTRY.time + 31 * DAY)
    book.add(ENTRY)
    book.add(replace(ENTRY, time=ENTRY.time + 31 * DAY))
    book.close()
    with closing(sqlite3.connect(tmp_path / "j")) as db:
        assert db.execute("SELECT count(*) FROM requests").fetchone() == (1,)
    assert read_usage(tmp_path / "j", "").whole.requests == 2
    assert read_usage(tmp_path / "j", day_of(ENTRY.time + DAY)).whole.requests == 1


def test_totals_outlive_rows_that_are_too_many(tmp_path: Path) -> None:
    book = journal(tmp_path / "j", max_bytes=200_000)
    for i in range(60):
        book.add(replace(ENTRY, request_id=str(i), text="x" * 9000))
    book.close()
    with closing(sqlite3.connect(tmp_path / "j")) as db:
        assert db.execute("SELECT count(*) FROM requests").fetchone()[0] < 30
    assert read_usage(tmp_path / "j", "").whole.requests == 60


def test_clients_that_differ_are_at_most_a_thousand_a_day(tmp_path: Path) -> None:
    book = journal(tmp_path / "j")
    with closing(sqlite3.connect(tmp_path / "j")):
        book.add(ENTRY)
    with closing(sqlite3.connect(tmp_path / "j")) as db:
        columns = db.execute("SELECT * FROM daily").fetchone()
        marks = ", ".join("?" * len(columns))
        rows = [(TODAY, "m", f"c{i}", "laptop", *columns[4:]) for i in range(999)]
        db.executemany(f"INSERT INTO daily VALUES ({marks})", rows)
        db.commit()
    for client in ("new", "newer", "c5", "codex"):
        book.add(replace(ENTRY, client=client))
    book.add(replace(ENTRY, client="other day", time=ENTRY.time + DAY))
    book.close()
    usage = read_usage(tmp_path / "j", TODAY)
    by_client = usage.by(lambda one: one.client)
    assert {name: by_client[name].requests for name in (OTHER, "c5", "codex", "other day")} == {
        OTHER: 2, "c5": 2, "codex": 2, "other day": 1,
    }  # fmt: skip
    assert usage.whole.requests == 1000 + 5


def test_old_days_go_and_there_are_only_so_many_rows(tmp_path: Path) -> None:
    book = journal(tmp_path / "j", max_bytes=1_000_000, max_age_s=10**9)
    book.add(replace(ENTRY, time=ENTRY.time - 2000 * DAY))
    book.add_disk({"m": DiskTally(1, 1)})
    for i in range(300):
        for client in ("a", "b"):
            book.add(replace(ENTRY, time=ENTRY.time + i * DAY, client=client))
    book.close()
    usage = read_usage(tmp_path / "j", "")
    assert len(usage.requests) <= 500
    assert usage.days[-1] == day_of(ENTRY.time + 299 * DAY)
    assert usage.moved == DiskTally(1, 1)


def test_bytes_on_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = journal(tmp_path / "j")
    assert book.add_disk({"m": DiskTally(100, 5), "n": DiskTally(1, 0)})
    assert book.add_disk({"m": DiskTally(20, 0)})
    usage = read_usage(tmp_path / "j", TODAY)
    assert {(one.day, one.model): one.moved for one in usage.disk} == {
        (TODAY, "m"): DiskTally(120, 5), (TODAY, "n"): DiskTally(1, 0),
    }  # fmt: skip
    with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert not book.add_disk({"m": DiskTally(7, 7)})
        other.execute("ROLLBACK")
    assert "locked" in caplog.text
    assert book.add_disk({"m": DiskTally(1, 0)})
    assert read_usage(tmp_path / "j", "").moved == DiskTally(122, 5)
    book.close()


def test_a_clock_beyond_all_years_loses_nothing(tmp_path: Path) -> None:
    book = journal(tmp_path / "j", max_age_s=10**30)
    book.add(replace(ENTRY, time=1e30))
    assert book.num_lost == 0
    book.close()
    assert read_usage(tmp_path / "j", "").whole.requests == 1


def test_rows_of_an_older_version_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "j"
    book = journal(path)
    aborted = replace(ENTRY, outcome="aborted", parts=None, cached_memory=0, cached_disk=0,
                      computed=0, generated=0, is_admitted=False, client="curl")  # fmt: skip
    for entry in (replace(ENTRY, root="ab"), replace(ENTRY, root="ab", parts=None), aborted):
        book.add(replace(entry, key=""))
    book.close()
    before = read_usage(path, "")
    with closing(sqlite3.connect(path)) as db:
        for column in ("key_name", "admitted"):
            db.execute(f"ALTER TABLE requests DROP COLUMN {column}")
        for table in ("daily", "daily_disk"):
            db.execute(f"DROP TABLE {table}")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) - 1}")
        db.commit()
    with pytest.raises(StoreError, match="no daily totals yet") as caught:
        read_usage(path, "")
    assert "next request" in caught.value.hint
    book = journal(path)
    assert book.add_disk({"m": DiskTally(1, 1)})
    book.close()
    assert read_usage(path, "").requests == before.requests


def test_nothing_is_read_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no journal"):
        read_usage(tmp_path / "j", "")


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from omlx.storage.tally import DiskTally
from tests.unit.storage.test_tally import ENTRY, journal
book = journal(Path(sys.argv[1]))
for i in range(100_000):
    book.add(replace(ENTRY, request_id=str(i), client=f"c{i % 3}", generated=i))
    if i == 20:
        print("at work", flush=True)
"""


def test_a_kill_loses_of_the_totals_what_it_loses_of_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"at work\n"
        writer.send_signal(signal.SIGKILL)
    usage = read_usage(path, "")
    with closing(sqlite3.connect(path)) as db:
        (num, generated) = db.execute("SELECT count(*), sum(generated) FROM requests").fetchone()
    assert num > 20
    assert (usage.whole.requests, usage.whole.generated) == (num, generated)
