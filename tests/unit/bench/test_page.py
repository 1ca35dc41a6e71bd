"""The page of a report: whole, by itself, and harmless whatever the names are."""

import re
from html.parser import HTMLParser

import pytest

from omlx.bench.chart import Bar, bars
from omlx.bench.page import page, shown
from tests.unit.bench.reports import make_report

_VOID = {"meta", "line", "rect"}


class _Reader(HTMLParser):
    """Checks that tags match, and keeps names and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(document: str) -> _Reader:
    reader = _Reader()
    reader.feed(document)
    reader.close()
    assert reader.open == []
    return reader


def test_all_that_was_measured_is_on_it() -> None:
    reader = _read(page(make_report()))
    for text in (
        "tiny-model", "prefill (tokens/s)", "1,250", "ttft (s)", "omlx / peer", "2.033",
        "same request twice", "pass", "FAIL", "not checked", "lost at block 3", "a note",
        "Some Processor", "omlx serve --port=0", "cold", "disk", "131,072",
    ):  # fmt: skip
        assert text in reader.text, text
    assert {"table", "svg", "style"} <= reader.tags


def test_it_needs_no_network_and_no_script() -> None:
    document = page(make_report())
    reader = _read(document)
    assert reader.tags.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    assert not re.search(r"https?://|//[a-z]|url\(|@import|javascript:", document)
    names = {name for name, _ in reader.attributes}
    assert names.isdisjoint({"src", "href"}) and not any(n.startswith("on") for n in names)
    assert "default-src 'none'" in document
    assert "prefers-color-scheme: dark" in document


@pytest.mark.parametrize(
    "odd", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "&lt;"]
)
def test_names_from_elsewhere_are_only_text(odd: str) -> None:
    plain, reader = _read(page(make_report())), _read(page(make_report(model=odd, note=odd)))
    assert reader.tags == plain.tags
    assert odd in reader.text


def test_bars_are_to_scale_and_within_the_picture() -> None:
    rows = [Bar("a", 10.0, 5.0, 20.0, "10"), Bar("b" * 200, 20.0, 20.0, 20.0, "20")]
    drawing = bars(rows, unit="s")
    widths = [float(w) for w in re.findall(r'<rect class="bar"[^>]* width="([\d.]+)"', drawing)]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    for x in re.findall(r' x[12]?="([\d.]+)"', drawing):
        assert 0 <= float(x) <= 960
    assert "b" * 200 not in re.sub(r"<title>.*?</title>", "", drawing)


def test_bars_of_nothing_but_zeros() -> None:
    assert bars([Bar("a", 0.0, 0.0, 0.0, "0")], unit="s").count("<rect") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "True"), (3, "3"), (12345, "12,345"), (1234.5, "1,234"),
     (0.01234, "0.0123"), ("x", "x"), (0.0, "0")],
)  # fmt: skip
def test_values_for_people(value: object, text: str) -> None:
    assert shown(value) == text
