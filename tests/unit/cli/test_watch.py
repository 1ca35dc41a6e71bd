"""`omlx cache inspect --live`: what it shows, and how it ends."""

import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from omlx.cli.view.recent import cache_line, render_cache
from omlx.cli.view.status import Moves, Status, read_status
from omlx.cli.view.store import Flow, Flows
from omlx.cli.view.trend import Trend
from omlx.cli.watch import CacheLines, CachePicture, watch, watch_server
from omlx.errors import ServerError
from omlx.settings.build import load
from tests.fakes.http import JsonServer
from tests.golden import same_as_golden
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_view import answer

REQUESTS = [
    {
        "id": "r2",
        "time": 1_800_000_000.0,
        "model": "SmolLM2-135M",
        "client": "claude-cli",
        "outcome": "stop",
        "prompt_tokens": 31_337,
        "cached_memory": 12_000,
        "cached_disk": 337,
        "uncached": 19_000,
        "generated": 9,
        "ttft_s": 0.25,
        "miss": "diverged",
        "part": "system block 0",
    },
    {
        "id": "r1",
        "time": 1_799_999_990.0,
        "model": "SmolLM2-135M",
        "client": "",
        "outcome": "aborted",
        "prompt_tokens": 500,
        "cached_memory": 0,
        "cached_disk": 0,
        "uncached": 500,
        "generated": 0,
        "ttft_s": None,
        "miss": "cold",
        "part": None,
    },
]


def status() -> dict[str, object]:
    """A server at work, and the last two requests of it."""
    return {**answer(), "recent": REQUESTS}


class KeepView:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Mapping[str, object]] = []
        self.is_closed = False

    def show(self, status: Mapping[str, object]) -> None:
        self.shown.append(status)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day are the same everywhere."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize("width", [80, 160])
def test_the_picture(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(render_cache(read_status(status()), width=width))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    same_as_golden(f"view/cache-live-{width}.txt", "\n".join(lines) + "\n")


def test_the_line_tells_of_the_newest_request() -> None:
    line = cache_line(read_status(status()))
    assert "hit rate 87.0 %" in line
    assert line.endswith("; last: 19,000 of 31,337 computed, diverged in system block 0")
    assert "last:" not in cache_line(read_status(answer()))


def test_requests_that_lack_everything() -> None:
    found = read_status({"recent": [{}, 5, {"part": None, "ttft_s": "x"}]})
    assert [one.id for one in found.recent] == ["", ""]
    console = Console(file=io.StringIO(), width=80)
    console.print(render_cache(found, width=80))


def test_it_shows_until_it_is_interrupted() -> None:
    view, pauses = KeepView(), []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(status, view, interval_s=0.5, pause=pause)
    assert (len(view.shown), view.is_closed, pauses) == (3, True, [0.5] * 3)


def test_the_end_of_the_server_ends_it() -> None:
    view = KeepView()

    def gone() -> Mapping[str, object]:
        raise ServerError("gone")

    with pytest.raises(ServerError, match="gone"):
        watch(gone, view, interval_s=0.5)
    assert view.is_closed


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    view = CacheLines(as_json=True)
    view.show(status())
    view.close()
    assert json.loads(capsys.readouterr().out)["recent"][0]["miss"] == "diverged"


def test_a_picture_leaves_the_terminal_as_it_was() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    view = CachePicture(console)
    view.show(status())
    assert console.is_alt_screen
    view.close()
    assert not console.is_alt_screen
    assert isinstance(console.file, io.StringIO)
    assert "diverged" in console.file.getvalue()


def test_a_server_that_runs_is_found_and_its_end_is_an_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = load(env={"OMLX_HOME": str(home)}, cwd=home)
    with JsonServer({"/admin/api/status": status()}) as fake:
        resolved.state_dir.mkdir(parents=True)
        state = {"pid": os.getpid(), "address": fake.address, "version": "0.1.0"}
        (resolved.state_dir / f"server-{fake.port}.json").write_text(json.dumps(state))

        def pause(seconds: float) -> None:
            fake.answers = {}

        with pytest.raises(ServerError, match="answers /admin/api/status with 404"):
            watch_server(resolved, as_json=True, pause=pause)
    assert json.loads(capsys.readouterr().out)["recent"][0]["id"] == "r2"


def test_no_server(cli: Cli, home: Path) -> None:
    outcome = cli("cache", "inspect", "--live")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"no server that uses {home}/cache can be watched" in outcome.err
    assert "omlx serve starts one" in outcome.err


def moved(written: int, evicted: int = 0, tokens: int = 0) -> Status:
    moves = {
        "blocks_written": written, "bytes_written": written * 1_000_000, "evicted_disk": evicted,
    }  # fmt: skip
    model = {
        "id": "m", "state": "ready", "disk": {"blocks": 5, "bytes": 5_000_000}, "counters": moves,
        "tokens": {"prompt": 2 * tokens, "cached_memory": tokens, "cached_disk": 0},
        "writes": {"dirty_bytes": 1_000, "queued_bytes": 500},
    }  # fmt: skip
    return read_status({"models": [model]})


def test_flows_are_of_the_last_seconds_and_begin_anew_with_an_engine() -> None:
    flows = Flows()
    assert flows.add(moved(100), 0.0) == Flow()
    assert flows.add(moved(104, 1, 512), 4.0) == Flow(
        4.0, Moves(written=4, bytes_written=4_000_000, evicted_disk=1), 512, 0
    )
    assert flows.add(moved(104, 1, 512), 13.0).moves.written == 4
    assert flows.add(moved(104, 1, 512), 15.0) == Flow(11.0)
    assert flows.add(moved(1), 16.0) == Flow()
    assert flows.add(moved(3), 17.0).moves.written == 2


def test_the_store_at_work() -> None:
    flows = Flows()
    flows.add(moved(100), 0.0)
    now = moved(104, 1, 512)
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(render_cache(now, width=80, flow=flows.add(now, 4.0), trend=Trend((), (0.5,))))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "104 written +4" in text and "1 evicted +1" in text and "512 +512" in text
    assert "written 1.0 MB/s, read 0 B/s, 1.5 kB to be written" in text
    assert cache_line(now).endswith(
        "; written 104 blocks (104.0 MB), read 0, evicted 0 from memory and 1 from disk"
    )


def test_a_time_beyond_all_years_can_be_drawn() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(render_cache(read_status({"recent": [{"time": 1e300}]}), width=80))
