"""The turns of a replay as a table that fits, on a page, and in a headline."""

import io

import pytest
from rich.console import Console

from omlx.bench.page import page
from omlx.bench.result import Case, Report
from omlx.cli.view.bench import render


def report(num: int = 2) -> Report:
    rows: list[Case] = [
        {
            "agent": 1,
            "turn": idx + 1,
            "prefix": "memory",
            "prompt": 12_345,
            "uncached": None,
            "ttft_s": 1.23456,
            "trace": "<b>agent\x1b[31m-00</b>",
        }
        for idx in range(num)
    ]
    return Report("agent", 7, "fake", {"cores": 2}, rows=tuple(rows))


def shown(width: int, found: Report) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(found, width=width), highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_columns_that_do_not_fit_are_left_out(width: int) -> None:
    lines = shown(width, report())
    head = next(line for line in lines if line.startswith("agent"))
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line or "\x1b" in line for line in lines)
    assert head.split()[:3] == ["agent", "turn", "prefix"]
    assert ("trace" in head) is (width >= 80)
    assert any("12,345" in line for line in lines)


def test_more_than_anybody_reads_is_not_printed() -> None:
    lines = shown(80, report(61))
    assert "61 rows: --json has them" in [line.strip() for line in lines]


def test_the_page_has_them_all() -> None:
    text = page(report(61))
    assert text.count('<td class="n">12,345</td>') == 61
    assert "<b>agent" not in text and "&lt;b&gt;agent" in text
