"""The dashboard, the alerts and the guide name metrics and labels that exist, and all of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import Metric

from omlx.cli.view import lead
from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import CacheCounters, EngineSnapshot, EngineState, RequestStats, WriteUsage
from omlx.server.figures import EngineView
from omlx.server.metrics import Metrics
from omlx.server.session import Caller, Course

DOCS = Path(__file__).parents[3] / "docs"
BOARD = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
RULES = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())
GUIDE = (DOCS / "guide" / "monitoring.md").read_text()
# What Prometheus itself adds.
OF_PROMETHEUS = {"instance", "job", "le"}
WORDS = {"histogram_quantile", "sum", "max", "by", "rate", "increase", "ignoring", "group_left",
         "and", "le"}  # fmt: skip


def known() -> dict[str, set[str]]:
    """Every metric of a server with a request of each kind behind it, with its labels."""
    snapshot = EngineSnapshot(
        counters=CacheCounters(bad={"checksum": 1}, dropped={"failed": 1}),
        writes=WriteUsage(max_day_bytes=5),
    )
    health = EngineHealth(last_step_age_s=1.0)
    metrics = Metrics(lambda: [EngineView("m", EngineState.READY, snapshot, health)])
    course = Course("r", "m", arrived=0.0, prompt_tokens=9, caller=Caller(client="c", key="k"))
    metrics.opened(course)
    course.admitted, course.submitted, course.first_token, course.ended = 1.0, 1.0, 2.0, 3.0
    course.stats = RequestStats(9, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    metrics.admitted(course)
    metrics.closed(course)
    metrics.gap(course, 0.1)
    metrics.changed("m", {"tool_order": 1})
    metrics.rerendered("m", "done", 4)
    metrics.error_sent(500)
    metrics.moved("m", 1, 1)
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for name, labels in _samples(family):
            found.setdefault(name, set()).update(labels)
    return found


def _samples(family: Metric) -> Iterator[tuple[str, set[str]]]:
    assert family.samples, f"{family.name} is not shown with a request of each kind"
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            yield sample.name, set(sample.labels)


KNOWN = known()


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression stands, and the expression."""
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            yield f"dashboard: {panel['title']} {target['refId']}", target["expr"]
    for one in BOARD["templating"]["list"]:
        if one["type"] == "query":
            yield f"dashboard: {one['name']}", one["definition"]
    for rule in rules():
        yield f"alerts: {rule['alert']}", rule["expr"]


def rules() -> list[dict]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


ALL = list(expressions())


@pytest.mark.parametrize("expr", [expr for _, expr in ALL], ids=[where for where, _ in ALL])
def test_an_expression_names_what_exists(expr: str) -> None:
    names = re.findall(r"\bomlx_\w+", expr)
    assert names or expr == 'up{job="omlx"} == 0'
    assert [name for name in names if name not in KNOWN] == []
    labels = {label for name in names for label in KNOWN[name]} | OF_PROMETHEUS
    for name, selectors in re.findall(r"\b(omlx_\w+)\{([^}]*)\}", expr):
        used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selectors))
        assert used <= KNOWN[name] | OF_PROMETHEUS, f"{name} has no label {used - KNOWN[name]}"
    for grouped in re.findall(r"\b(?:by|ignoring)\s*\(([^)]*)\)", expr):
        assert set(re.findall(r"\w+", grouped)) <= labels, grouped
    assert expr.count("(") == expr.count(")")


def test_what_panels_write_beside_a_line_is_a_label_of_it() -> None:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            labels = {
                la for name in re.findall(r"\bomlx_\w+", target["expr"]) for la in KNOWN[name]
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_the_dashboard_can_be_imported() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert BOARD["panels"][0]["title"] == "Lead figures"
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    variables = {one["name"] for one in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"])))
    assert used <= variables | {"__rate_interval"}


def test_an_alert_says_what_it_is_and_how_urgent() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("watch", "bad")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert all(rule["annotations"].values())


def test_thresholds_are_those_of_the_views() -> None:
    """In alerts, dashboard and guide."""
    by_name = {rule["alert"]: rule["expr"] for rule in rules()}

    def limit(alert: str) -> float:
        """The number that an expression compares with."""
        return float(re.findall(r"> ([0-9.e]+)", by_name[alert])[0])

    levels = {
        "UncachedTokens": (lead.UNCACHED_GOOD, lead.UNCACHED_WATCH),
        "Ttft": (lead.TTFT_GOOD_S, lead.TTFT_WATCH_S),
        "DiskWritten": (lead.WRITTEN_GOOD_BYTES, lead.WRITTEN_WATCH_BYTES),
    }
    for name, numbers in levels.items():
        assert (limit(f"Omlx{name}Watch"), limit(f"Omlx{name}Bad")) == numbers
    assert limit("OmlxDiskEvictedWatch") == lead.EVICTED_GOOD
    assert lead.EVICTED_WATCH == 1 and "> max by" in by_name["OmlxDiskEvictedBad"]
    drawn = {
        tuple(step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:])
        for panel in BOARD["panels"]
        if panel["type"] != "row"
    }
    assert drawn - {()} == {*levels.values()}
    (good, watch), (fast, slow), (little, much) = levels.values()
    for row in (
        f"| up to {good:,} | up to {watch:,} |",
        f"| up to {fast:g} s | up to {slow:g} s |",
        f"| up to {little / 1e9:g} GB | up to {much / 1e9:g} GB |",
    ):
        assert row in GUIDE


def test_the_guide_names_every_metric_and_no_other() -> None:
    named = set(re.findall(r"`(omlx_\w+\*?)`", GUIDE))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in KNOWN}

    def is_named(name: str) -> bool:
        return name in named or any(name.startswith(one[:-1]) for one in named if one.endswith("*"))

    optional = {"omlx_idle_rerendered_tokens_total"}
    assert {name for name in families - optional if not is_named(name)} == set()
    exact = {one for one in named if not one.endswith("*")}
    assert exact <= families | set(KNOWN), exact - families
