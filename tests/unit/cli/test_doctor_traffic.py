"""`omlx doctor --traffic`: each symptom from a journal that shows it, and none from one that does
not."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import omlx.cli.checks.software
from omlx.cli.checks.traffic import JUDGES, PAGE
from omlx.launch.service.tool import Done
from omlx.storage.entry import JournalEntry, MissReason, Part, PartKind, Span, TtftParts
from omlx.storage.journal import Journal
from omlx.storage.tally import DiskTally
from tests.unit.cli.conftest import Cli

ROOT = Path(__file__).parents[3]
SPANS = (
    Span(Part(PartKind.SYSTEM, 0), 0, 100),
    Span(Part(PartKind.TOOL, 0, "Bash"), 100, 200),
    Span(Part(PartKind.MESSAGE, 0, "user"), 200, 1000),
)
Rows = list[JournalEntry]
Ask = Callable[..., list[dict[str, str]]]


def row(at: float, **more: Any) -> JournalEntry:
    """A request so many seconds before now, which took one second."""
    when = time.time() + at
    plain: dict[str, Any] = {
        "request_id": f"r{at}", "time": when, "ended": when + 1, "model": "tiny",
        "outcome": "stop", "client": "pi", "session": "s", "prompt_tokens": 1000,
        "cached_memory": 900, "generated": 10, "shared": 900, "spans": SPANS,
        "parts": parts(),
    }  # fmt: skip
    return JournalEntry(**{**plain, **more})


def parts(queue_s: float = 0.0, warm_up_s: float = 0.0) -> TtftParts:
    return TtftParts(queue_s, 0.0, warm_up_s, 0.0, 0.5, 0.0)


@pytest.fixture
def ask(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The symptoms of a journal with these rows, and with bytes moved by model."""

    def run(
        rows: Rows, moved: Mapping[str, DiskTally] | None = None, kernels: Mapping[str, str] = {}
    ) -> list[dict[str, str]]:
        said = json.dumps({"mlx": "1", "error": None, "backend": "cuda", "kernels": dict(kernels)})
        monkeypatch.setattr(omlx.cli.checks.software, "ask_mlx", lambda env, library: Done(0, said))
        path = home / "state" / "journal.sqlite3"
        path.parent.mkdir(parents=True)
        journal = Journal(path, max_bytes=10**8, max_age_s=10**7, clock=time.time)
        for one in rows:
            journal.add(one)
        journal.add_disk(moved or {})
        journal.close()
        assert journal.num_lost == 0
        outcome = cli("doctor", "--traffic", "--json")
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)["symptoms"]

    return run


def conversation(num: int, shared: int, miss: MissReason = MissReason.DIVERGED) -> Rows:
    """A first turn, and others that left what was stored at a token."""
    return [
        row(10 * idx - 1000, shared=shared, miss=MissReason.COLD if idx == 0 else miss)
        for idx in range(num + 1)
    ]


# ---- heads


def test_unstable_tools(ask: Ask) -> None:
    (said,) = ask(conversation(6, 150))
    assert said["name"] == "unstable tools" and said["docs"] == f"{PAGE}#unstable-tools"
    assert "6 of 6 turns of pi" in said["symptom"] and "Bash" in said["symptom"]
    assert f"{6 * 850:,} tokens" in said["symptom"]


def test_volatile_heads(ask: Ask) -> None:
    (said,) = ask(conversation(6, 50))
    assert said["name"] == "volatile heads" and "6 of 6 turns of pi" in said["symptom"]


@pytest.mark.parametrize(
    "rows",
    [
        conversation(4, 150),  # too few
        conversation(40, 600),  # in the messages, as conversations that are cut back do
        conversation(40, 150, MissReason.EVICTED),
        [row(i - 900, session=f"s{i}", shared=150, miss=MissReason.DIVERGED) for i in range(40)],
        [*conversation(5, 150), *(row(i - 500) for i in range(60))],  # five of 65
    ],
)
def test_heads_that_are_stable(ask: Ask, rows: Rows) -> None:
    assert ask(rows) == []


# ---- batch


def batch(client: str = "eval", at_once: int = 6, num: int = 60) -> Rows:
    """Requests that always run several at a time, over ten minutes."""
    found: Rows = []
    for idx in range(num):
        at = -600.0 + 10 * idx
        when = time.time() + at
        found.append(row(at, client=client, session=f"b{idx}", ended=when + 10 * at_once))
    return found


def waiting(num: int, begin: float, ttft_s: float, client: str = "pi") -> Rows:
    return [row(begin + 20 * idx, client=client, parts=parts(queue_s=ttft_s)) for idx in range(num)]


def ordered(rows: Rows) -> Rows:
    return sorted(rows, key=lambda one: one.time)


def test_batch_beside_interactive_work(ask: Ask) -> None:
    rows = ordered([*batch(), *waiting(8, -550, 6.0), *waiting(8, -3000, 0.5)])
    (said,) = ask(rows)
    assert said["name"] == "batch beside interactive work"
    assert said["symptom"].startswith("pi waited 6.5 s for a first token (1.0 s else) while eval")
    assert "X-Omlx-Class: batch" in said["fix"]


@pytest.mark.parametrize(
    "rows",
    [
        ordered([*batch(), *waiting(8, -550, 0.6), *waiting(8, -3000, 0.5)]),  # nobody waits
        ordered([*batch(at_once=1), *waiting(8, -550, 6.0), *waiting(8, -3000, 0.5)]),  # one each
        ordered([*batch(), *waiting(8, -3000, 6.0)]),  # at other times
        ordered([*batch(), *batch("other")]),  # both have time
    ],
)
def test_work_that_hinders_nobody(ask: Ask, rows: Rows) -> None:
    assert ask(rows) == []


# ---- disk


def test_low_hit_writing(ask: Ask) -> None:
    (said,) = ask([row(-9)], {"tiny": DiskTally(50 * 10**9, 0)})
    assert said["name"] == "low-hit SSD writing"
    assert "50.0 GB of tiny" in said["symptom"] and "0.0%" in said["symptom"]
    assert "cache.store" in said["fix"]


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        ([row(-9, cached_memory=0, cached_disk=900)], 50 * 10**9),  # it comes back
        ([row(-9)], 10**9),  # it is little
        ([row(-9, model="other")], 50 * 10**9),  # nobody asked for it meanwhile
    ],
)
def test_writing_that_pays(ask: Ask, rows: Rows, written: int) -> None:
    assert ask(rows, {"tiny": DiskTally(written, 0)}) == []


# ---- models that come and go


def reloaded(num: int, gap_s: float, warm_up_s: float = 8.0) -> Rows:
    """Requests that find their model unloaded, but for the first."""
    return [
        row(gap_s * (idx - num), parts=parts(warm_up_s=0 if idx == 0 else warm_up_s))
        for idx in range(num + 1)
    ]


def test_time_to_live_thrash(ask: Ask, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[model."tiny"]\nengine.ttl = "5m"\n')
    (said,) = ask(reloaded(4, 600))
    assert said["name"] == "time-to-live thrash"
    assert "tiny was loaded again 4 times" in said["symptom"] and "32.0 s" in said["symptom"]
    assert "engine.ttl is 5m 0s, and requests come 9m 59s apart" in said["cause"]
    assert "engine.ttl" in said["fix"]


def test_models_that_take_turns(ask: Ask) -> None:
    rows = ordered([*reloaded(4, 600), *(row(600 * i - 2300, model="other") for i in range(4))])
    (said,) = ask(rows)
    assert "other models" in said["cause"] and "models.max_loaded" in said["fix"]


def test_engines_that_end(ask: Ask) -> None:
    (said,) = ask(reloaded(4, 600))
    assert "ended in between" in said["cause"]


@pytest.mark.parametrize("rows", [reloaded(2, 600), reloaded(9, 600, warm_up_s=0.1)])
def test_models_that_stay(ask: Ask, rows: Rows) -> None:
    assert ask(rows) == []


# ---- kernels


def test_missing_kernels(ask: Ask) -> None:
    (said,) = ask([row(-9, generated=5000)], kernels={"a": "not built", "b": "verified"})
    assert said["name"] == "missing kernels" and "without a" in said["symptom"]
    assert said["fix"].startswith("omlx kernel build")


@pytest.mark.parametrize(
    ("generated", "kernels"),
    [
        (5000, {"b": "verified"}),
        (5000, {}),
        (5000, {"a": "no kernel here"}),
        (9, {"a": "not built"}),
    ],
)
def test_kernels_that_are_not_missed(ask: Ask, generated: int, kernels: dict[str, str]) -> None:
    assert ask([row(-9, generated=generated)], kernels=kernels) == []


# ---- the command


def test_the_text_has_all_parts(ask: Ask, cli: Cli) -> None:
    ask(conversation(6, 150))
    lines = cli("doctor", "--traffic").out.splitlines()
    assert lines[0] == "unstable tools"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["symptom", "cause", "fix", "more"]


def test_a_quiet_week_and_no_journal(ask: Ask, cli: Cli) -> None:
    outcome = cli("doctor", "--traffic")
    assert outcome.code == 1 and "there is no journal" in outcome.err
    assert ask([]) == []
    assert cli("doctor", "--traffic").out == "nothing stands out in the last 7 days\n"


def test_old_requests_are_left_out(ask: Ask) -> None:
    day = 86400.0
    assert (
        ask([row(10 * i - 20 * day, shared=150, miss=MissReason.DIVERGED) for i in range(9)]) == []
    )


def test_every_symptom_has_its_section() -> None:
    titles = {
        line[4:].lower().replace(" ", "-")
        for line in (ROOT / PAGE).read_text().splitlines()
        if line.startswith("### ")
    }
    made = (ROOT / "omlx" / "cli" / "checks" / "traffic.py").read_text()
    assert len(titles) == len(JUDGES)
    for title in titles:
        assert f'"{title}"' in made
