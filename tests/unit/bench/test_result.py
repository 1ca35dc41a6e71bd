"""A report as one JSON document."""

import json
from dataclasses import replace

import pytest

from omlx.bench.result import (
    SCHEMA,
    Check,
    Measure,
    has_failed,
    ratio_of,
    report_object,
    to_json,
)
from tests.unit.bench.reports import COLD, HIT, make_report


def test_the_document() -> None:
    text = to_json(make_report())
    assert "\n" not in text
    found = json.loads(text)
    assert found == report_object(make_report())
    assert (found["schema"], found["kind"], found["seed"]) == (SCHEMA, "throughput", 7)
    first = found["measures"][0]
    assert first["label"] == {"process": "cold", "start": "miss", "concurrency": 1}
    assert first["case"] == {"tokens": 2048, "transport": "HTTP"}
    assert (first["unit"], first["side"]) == ("tokens/s", "omlx")
    assert first["samples"] == [1234.5, 1300.0, 1250.25]
    assert (first["spread"]["median"], first["spread"]["count"]) == (1250.25, 3)
    assert found["measures"][-1]["spread"] is None
    assert found["ratios"][1]["high95"] is None
    assert [check["passed"] for check in found["checks"]] == [True, False, None]
    assert found["machine"]["commit"] == "f" * 40


def test_every_measure_has_its_label() -> None:
    for measure in report_object(make_report())["measures"]:
        assert set(measure["label"]) == {"process", "start", "concurrency"}


def test_no_number_that_json_lacks() -> None:
    odd = replace(make_report(), machine={"load": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(odd)


def test_measures_are_found_by_name_side_and_case() -> None:
    report = make_report()
    assert len(report.find("prefill")) == 2
    assert [one.side for one in report.find("prefill", side="peer")] == ["peer"]
    assert len(report.find("ttft", case={"tokens": 131072})) == 1
    assert report.find("ttft", case={"tokens": 1}) == ()


def test_a_ratio_of_two_sides() -> None:
    a, b = make_report().find("prefill")
    found = ratio_of(a, b)
    assert (found.side, found.base, found.name) == ("omlx", "peer", "prefill")
    assert found.interval.ratio == pytest.approx(2.0, rel=0.01)
    assert found.interval.pairs == 3


@pytest.mark.parametrize(
    "other",
    [
        Measure("prefill", "tokens/s", (1.0, 2.0, 3.0), HIT, "peer"),
        Measure("ttft", "s", (1.0, 2.0, 3.0), COLD, "peer"),
        make_report().measures[0],
    ],
)
def test_what_is_no_pair(other: Measure) -> None:
    with pytest.raises(ValueError, match="no pair"):
        ratio_of(make_report().measures[0], other)


def test_a_check_that_could_not_be_made_fails_nothing() -> None:
    assert not has_failed([Check("a", True, ""), Check("b", None, "")])
    assert has_failed([Check("a", True, ""), Check("b", False, "")])


def test_a_label_in_words() -> None:
    assert str(HIT) == "warm process, disk, 1 at once"
