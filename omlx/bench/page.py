"""A report as one HTML page that needs no network: tables and charts, dark and light.

Knows nothing about terminals. Every text is escaped; there is no script and no foreign address.
"""

from collections.abc import Sequence
from html import escape

from omlx.bench.chart import Bar, bars
from omlx.bench.result import Case, Check, Measure, Ratio, Report
from omlx.units import format_size

_PERCENTILES_FROM = 20  # with fewer samples a p95 is just the most

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --dim: #5f6670; --back: #ffffff;
  --line: #d9dce1; --bar: #2f6fdb; --good: #1b7f3b; --bad: #c0262d; --odd: #8a6100; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --dim: #9aa2ad; --back: #15181c;
  --line: #343a42; --bar: #6ea3ff; --good: #5cc97c; --bad: #ff7a7f; --odd: #e0b34a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p.facts { color: var(--dim); margin-top: .2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .28rem .7rem .28rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--dim); white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.main { font-weight: 600; }
.pass { color: var(--good); } .fail { color: var(--bad); font-weight: 600; }
.odd, .note { color: var(--odd); }
svg { display: block; width: 100%; height: auto; margin: .6rem 0 1rem; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg text.dim { fill: var(--dim); } svg rect.bar { fill: var(--bar); }
svg line.range { stroke: var(--text); stroke-width: 1.5; } svg line.axis { stroke: var(--line); }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--dim); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
"""


def page(report: Report) -> str:
    """The whole document, UTF-8."""
    title = f"omlx bench {report.kind}: {report.model}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="facts">{escape(_facts(report))}</p>',
        *(f'<p class="note">Note: {escape(note)}</p>' for note in report.notes),
    ]
    if report.checks:
        parts.append(_checks(report.checks))
    if report.ratios:
        parts.append(_ratios(report.ratios))
    for name in dict.fromkeys(measure.name for measure in report.measures):
        parts.append(_measures(report.find(name)))
    parts += _details(report)
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _facts(report: Report) -> str:
    machine = report.machine
    shown = [f"{key} {value}" for key, value in machine.items() if value not in (None, "")]
    return ", ".join([report.created, f"seed {report.seed}", *shown])


def _measures(measures: Sequence[Measure]) -> str:
    first = measures[0]
    keys = tuple(dict.fromkeys(key for measure in measures for key in measure.case))
    has_sides = any(measure.side for measure in measures)
    names = [*keys, *(["side"] if has_sides else []), "process", "prefix"]
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    figures = ("at once", "median", "least", "most", "p95", "p99", "samples")
    heads += "".join(f'<th class="n">{escape(name)}</th>' for name in figures)
    rows = "".join(f"<tr>{_row(measure, keys, has_sides=has_sides)}</tr>" for measure in measures)
    return (
        f"<h2>{escape(first.name)} ({escape(first.unit)})</h2>\n{_chart(measures)}"
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(measure: Measure, keys: Sequence[str], *, has_sides: bool) -> str:
    label = measure.label
    texts = [shown(measure.case.get(key)) for key in keys]
    texts += [measure.side] if has_sides else []
    cells = "".join(f"<td>{escape(text)}</td>" for text in (*texts, label.process, label.start))
    cells += f'<td class="n">{label.concurrency}</td>'
    if not measure.samples:
        return cells + '<td class="n">-</td>' * 6
    found = measure.spread()
    tail = (found.p95, found.p99) if found.count >= _PERCENTILES_FROM else (None, None)
    cells += f'<td class="n main">{escape(shown(found.median, measure.unit))}</td>'
    for value in (found.least, found.most, *tail):
        cells += f'<td class="n">{escape(shown(value, measure.unit))}</td>'
    return cells + f'<td class="n">{found.count:,}</td>'


def _chart(measures: Sequence[Measure]) -> str:
    drawn = [measure for measure in measures if measure.samples]
    if len(drawn) < 2:
        return ""
    labels = _labels(drawn)
    found = []
    for measure, label in zip(drawn, labels, strict=True):
        spread = measure.spread()
        text = shown(spread.median, measure.unit)
        found.append(Bar(label, spread.median, spread.least, spread.most, text))
    return bars(found, unit=drawn[0].unit)


def _labels(measures: Sequence[Measure]) -> list[str]:
    """What tells each measure from the others: only what differs among them."""
    columns: list[dict[str, str]] = []
    for measure in measures:
        label = measure.label
        cells = {key: f"{key} {shown(value)}" for key, value in measure.case.items()}
        cells |= {"/side": measure.side, "/process": label.process, "/start": label.start}
        columns.append({**cells, "/once": f"{label.concurrency} at once"})
    keys = dict.fromkeys(key for cells in columns for key in cells)
    varying = [key for key in keys if len({cells.get(key, "") for cells in columns}) > 1]
    return [", ".join(filter(None, (c.get(key, "") for key in varying))) for c in columns]


def _ratios(ratios: Sequence[Ratio]) -> str:
    rows = ""
    for ratio in ratios:
        found = ratio.interval
        range95 = "?" if found.high95 is None else f"{found.low95:.3f}–{found.high95:.3f}"
        main = ' class="n main"' if found.is_decided else ' class="n"'
        rows += (
            f"<tr><td>{escape(ratio.name)}</td><td>{escape(case_text(ratio.case))}</td>"
            f"<td>{escape(str(ratio.label))}</td>"
            f"<td>{escape(ratio.side)} / {escape(ratio.base)}</td>"
            f'<td{main}>{found.ratio:.3f}</td><td class="n">{range95}</td>'
            f'<td class="n">{found.pairs}</td></tr>'
        )
    heads = "".join(f"<th>{name}</th>" for name in ("figure", "case", "label", "sides"))
    heads += "".join(f'<th class="n">{name}</th>' for name in ("ratio", "95 % interval", "pairs"))
    return (
        f'<h2>ratios</h2><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _checks(checks: Sequence[Check]) -> str:
    words = {True: ("pass", "pass"), False: ("fail", "FAIL"), None: ("odd", "not checked")}
    rows = ""
    for check in checks:
        style, word = words[check.is_passed]
        rows += (
            f'<tr><td>{escape(check.name)}</td><td class="{style}">{word}</td>'
            f"<td>{escape(check.reason)}</td><td>{escape(case_text(check.figures))}</td></tr>"
        )
    heads = "".join(f"<th>{name}</th>" for name in ("check", "outcome", "reason", "figures"))
    return (
        f'<h2>checks</h2><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _details(report: Report) -> list[str]:
    found: list[str] = []
    for name, facts in report.sides.items():
        lines = "\n".join(f"{key}: {value}" for key, value in facts.items())
        found.append(_hidden(f"side {name}", lines))
    if report.options:
        lines = "\n".join(f"{key}: {value}" for key, value in report.options.items())
        found.append(_hidden("options", lines))
    return found


def _hidden(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def case_text(case: Case) -> str:
    """A case in a few words."""
    return ", ".join(f"{key} {shown(value)}" for key, value in case.items())


def shown(value: object, unit: str = "") -> str:
    """A value for people: numbers to three digits that count, bytes as sizes."""
    if value is None:
        return "-"
    if unit == "bytes" and isinstance(value, int | float):
        return format_size(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
