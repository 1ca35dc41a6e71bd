"""The picture of `omlx top` at several widths and heights, whatever a server tells."""

import io
import json
import unicodedata

import pytest
from rich.cells import cell_len
from rich.console import Console

from omlx.cli.view.running import RunningRequest, read_running
from omlx.cli.view.status import Status, read_status
from omlx.cli.view.top import Frame, render
from omlx.cli.view.trend import Trend, Trends
from tests.golden import same_as_golden
from tests.unit.cli.test_watch import status

DAY = {
    "covered_s": 7200.0,
    "written_bytes": 2_100_000_000,
    "evicted_bytes": 17_000_000_000,
    "clients": [
        {"client": "claude-cli", "turns": 40, "uncached_mean": 412.4},
        {"client": "codex", "turns": 3, "uncached_mean": 12_000.0},
        {"client": "", "turns": 1, "uncached_mean": 5_000.0},
    ],
}
PARTS = {
    "queue": 0.001, "load": 0.048, "warm_up": 0.0, "restore": 0.011, "prefill": 0.9,
    "bookkeeping": 0.072,
}  # fmt: skip
REQUESTS = {
    "requests": [
        {
            "id": "3f0c9a61b2d4e87f00a1c2d3", "model": "SmolLM2-135M", "state": "prefill",
            "dialect": "anthropic", "client": "claude-cli", "age_s": 15.2,
            "prompt_tokens": 31_337, "cached_tokens": 6_000, "prefilled_tokens": 12_288,
            "to_prefill_tokens": 25_337, "generated_tokens": 0, "ttft_s": None,
            "tokens_per_s": 812.2,
        },
        {
            "id": "3f0c9a61b2d4e87f00a1c2d4", "model": "SmolLM2-135M", "state": "decode",
            "dialect": "responses", "client": "codex", "age_s": 5.2, "prompt_tokens": 1_337,
            "cached_tokens": 600, "prefilled_tokens": 737, "to_prefill_tokens": 737,
            "generated_tokens": 57, "ttft_s": 1.2, "tokens_per_s": 41.2,
        },
        {
            "id": "3f0c9a61b2d4e87f00a1c2d5", "model": "某模型-大-模型", "state": "queued",
            "dialect": "chat", "client": "", "age_s": 65.2, "prompt_tokens": 1_337,
            "cached_tokens": 0, "prefilled_tokens": 0, "to_prefill_tokens": None,
            "generated_tokens": 0, "ttft_s": None, "tokens_per_s": None,
        },
    ]
}  # fmt: skip
TREND = Trend(
    ttft_s=(3.0, 0.2, 0.4, 0.1, 1.5, 0.2, 0.1, 0.3), hit_rates=(0.0, 0.5, 0.9, 0.97, 0.2, 0.98, 1.0)
)
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202e\u2066evil\ud800\x00[red]x[/]"


def told() -> dict[str, object]:
    """What a server at work says."""
    found = json.loads(json.dumps(status()))
    found["ttft_s"]["parts"] = PARTS
    found["last_day"] = DAY
    found["machine_memory"] = {"total_bytes": 64 * 10**9, "available_bytes": 20 * 10**9}
    first = found["models"][0]
    first["pid"] = 4711
    first["memory_use"] = {"process_bytes": 3_300_000_000, "limit_bytes": 8_000_000_000}
    found["models"].append({"id": "unused", "state": "unloaded"})
    return found


def frame(note: str = "") -> Frame:
    return Frame(read_status(told()), read_running(REQUESTS), TREND, note)


def drawn(
    shown: Frame, width: int, height: int | None = None, *, encoding: str = "utf-8"
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(render(shown, width=width, height=height))
    out.seek(0)
    return [line.rstrip() for line in out.read().split("\n")[:-1]]


def running(number: int) -> RunningRequest:
    return RunningRequest(
        f"r{number}", "m", "decode", "chat", "c", 1.0, 10, 0, 10, 10, number, 0.1, 40.0
    )


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_picture(width: int) -> None:
    lines = drawn(frame(), width)
    assert all(cell_len(line) <= width for line in lines)
    same_as_golden(f"view/top-{width}.txt", "\n".join(lines) + "\n")


def test_a_server_that_has_just_begun() -> None:
    same_as_golden("view/top-empty.txt", "\n".join(drawn(Frame(Status()), 80)) + "\n")


def test_in_ascii() -> None:
    lines = drawn(frame(), 80, encoding="ascii")
    assert all(line.isascii() for line in lines)
    memory = next(line for line in lines if line.startswith("memory"))
    assert memory.split()[1] == "#" * 16 + "-" * 14
    assert any(line.startswith("hit rate       87.0 %  _=##.##") for line in lines)


@pytest.mark.parametrize("width", [1, 20, 40, 63, 64, 119, 120, 500])
def test_any_width_can_be_drawn(width: int) -> None:
    assert all(cell_len(line) <= width for line in drawn(frame(), width, 24))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("height", [24, 50])
@pytest.mark.parametrize("num_requests", [0, 1, 100])
@pytest.mark.parametrize("num_engines", [0, 1, 40])
def test_it_fits_and_counts_what_does_not(
    width: int, height: int, num_requests: int, num_engines: int
) -> None:
    state = read_status(
        {**told(), "models": [{"id": f"m{n}", "state": "ready"} for n in range(num_engines)]}
    )
    requests = tuple(map(running, range(num_requests)))
    lines = drawn(Frame(state, requests, TREND, "note"), width, height)
    assert len(lines) <= height
    text = "\n".join(lines)
    num_shown = sum(line.split()[-1:] == ["1.0", "s"][-1:] and " out " in line for line in lines)
    assert (f"… {num_requests - num_shown} more" in text) == (num_shown < num_requests)
    assert num_shown >= min(num_requests, 1)
    num_ready = sum(" ready " in line for line in lines)
    assert (f"… {num_engines - num_ready} more" in text) == (num_ready < num_engines)
    assert num_ready >= min(num_engines, 1)


def test_what_is_wrong_stands_below_the_title() -> None:
    lines = drawn(frame("no server is running; waiting for one"), 80, 24)
    assert lines[1] == "no server is running; waiting for one"


def test_texts_of_others_are_harmless() -> None:
    """In every field that holds a text, also of the JSON's keys."""

    def spoilt(value: object) -> object:
        match value:
            case dict():
                return {key: spoilt(one) for key, one in value.items()}
            case list():
                return [spoilt(one) for one in value]
            case str():
                return HOSTILE + value
            case _:
                return value

    answer = spoilt(told())
    assert isinstance(answer, dict)
    answer["ttft_s"]["parts"][HOSTILE] = 5.0
    answer["models"][0]["counters"]["bad"][HOSTILE] = 5
    requests = spoilt(REQUESTS)
    assert isinstance(requests, dict)
    shown = Frame(read_status(answer), read_running(requests), TREND)
    for width in (40, 80, 200):
        lines = drawn(shown, width)
        assert all(cell_len(line) <= width for line in lines)
        kinds = {unicodedata.category(char) for line in lines for char in line}
        assert not kinds & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert "[red]x[/]" in "".join(drawn(shown, 500))


def test_a_name_of_a_megabyte_is_cut() -> None:
    answer = told()
    answer["models"][0]["id"] = "x" * 10**6  # type: ignore[index]
    assert all(len(line) <= 80 for line in drawn(Frame(read_status(answer)), 80))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"requests": 1},
        {"requests": [1, {}, {"to_prefill_tokens": 10**400, "prompt_tokens": "x"}]},
        {"requests": [{"to_prefill_tokens": 0, "state": "prefill", "age_s": float("nan")}]},
        {"requests": [{"to_prefill_tokens": 5, "prefilled_tokens": 50, "state": "prefill"}]},
    ],
)
def test_requests_of_any_shape_can_be_drawn(answer: dict[str, object]) -> None:
    for width in (40, 80, 200):
        assert drawn(Frame(Status(), read_running(answer)), width)


def test_trends_take_each_request_once() -> None:
    recent = read_status(told()).recent
    trends = Trends()
    assert trends.add(recent[1:]) == Trend((), (0.0,))
    assert trends.add(recent) == Trend((0.25,), (0.0, 12_337 / 31_337))
    assert trends.add(recent) == Trend((0.25,), (0.0, 12_337 / 31_337))
