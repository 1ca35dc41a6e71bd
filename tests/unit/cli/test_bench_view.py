"""Tables of a report, at two widths, with and without a terminal."""

import io

import pytest
from rich.console import Console

from omlx.bench.step import Step
from omlx.cli.view.bench import StepBar, figure, number, print_report, printable
from tests.golden import same_as_golden
from tests.unit.bench.reports import make_report


def _printed(width: int, *, is_terminal: bool = True, **fields: str) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=is_terminal, color_system=None)
    print_report(make_report(**fields), console)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 200])
def test_a_report_in_a_terminal(width: int) -> None:
    text = _printed(width)
    assert max(map(len, text.splitlines())) <= width
    same_as_golden(f"view/bench-{width}.txt", text)


def test_a_report_in_a_file_has_no_codes() -> None:
    text = _printed(37, is_terminal=False)
    assert "\x1b" not in text
    same_as_golden("view/bench-plain.txt", text)


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def coloured() -> str:
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, color_system="standard")
        print_report(make_report(), console)
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31mFAIL" in coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in coloured()


@pytest.mark.parametrize("width", [20, 40])
def test_a_narrow_terminal_is_no_error(width: int) -> None:
    assert "prefill" in _printed(width)


def test_names_from_elsewhere_do_nothing_to_a_terminal() -> None:
    text = _printed(80, model="a\x1b[2Jb\rc[red]d", note="x\x07\u202ey")
    assert "\x1b" not in text and "\r" not in text and "\x07" not in text and "\u202e" not in text
    assert "a�[2Jb�c[red]d" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.00001234, "1.23e-05"), (0.0123456, "0.0123"), (0.5, "0.500"),
     (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234"), (-2.5, "-2.50")],
)  # fmt: skip
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_figures_of_units() -> None:
    assert figure(12_300_000, "bytes") == "12.3 MB"
    assert figure(12_300_000, "bytes/s") == "12.3 MB/s"
    assert figure(1.0, "tokens") == "1"
    assert printable("a b\tc") == "a b�c"


def test_progress() -> None:
    out = io.StringIO()
    with StepBar("cache", Console(file=out, width=80, force_terminal=True)) as bar:
        bar(Step("loads [bold]x\x1b", 1, 4))
    shown = out.getvalue()
    assert "1/4" in shown
    assert "loads [bold]x" in shown
