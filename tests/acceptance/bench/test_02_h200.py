"""Point 2: on an H200, omlx against mlx_lm.server with an 8B shape, and the 27B hybrid shape.

The GPU is not part of this machine: `scripts/gpu WHEELS python3 scripts/bench/gpu_compare.py
TOKENIZER_DIR --out FILE` measures there; docs/bench/h200-compare.json is judged here.
"""

import json
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY

KEPT = REPOSITORY / "docs" / "bench" / "h200-compare.json"
DENSE = ("bf16", "4bit")


@pytest.fixture(scope="module")
def result() -> Any:
    return json.loads(KEPT.read_text())


def median(part: Any, side: str, of: str, name: str = "ttft", at_once: int = 1) -> float:
    """The median of a figure of one side; KeyError-like failure if it was not measured."""
    (found,) = [
        measure
        for measure in part["measures"]
        if measure["name"] == name
        and measure["side"] == side
        and measure["case"]["of"] == of
        and measure["label"]["concurrency"] == at_once
    ]
    return found["spread"]["median"]


def ratio(part: Any, name: str, of: str, at_once: int = 1, *, peer: str = "mlx-lm") -> Any:
    """How far omlx is ahead of a peer, above 1."""
    (found,) = [
        one
        for one in part["ratios"]
        if one["name"] == name
        and peer in (one["side"], one["base"])
        and one["case"]["of"] == of
        and one["label"]["concurrency"] == at_once
    ]
    return found


def shown(one: Any) -> str:
    high = "-" if one["high95"] is None else f"{one['high95']:.2f}"
    return f"{one['ratio']:.2f} [{one['low95']:.2f}, {high}]"


def test_it_was_an_h200_and_both_answered(result: Any) -> None:
    assert "H200" in result["device"]
    assert {*result["parts"]} >= {*DENSE, "hybrid"}
    for name, part in result["parts"].items():
        assert all(check["passed"] for check in part["checks"]), f"{name}: {part['checks']}"


@pytest.mark.parametrize("name", DENSE)
def test_prompts(result: Any, name: str, figure: Figure) -> None:
    part = result["parts"][name]
    cells = {of: ratio(part, "ttft", of) for of in ("cold", "again", "more", "restart")}
    times = {of: (median(part, "omlx", of), median(part, "mlx-lm", of)) for of in cells}
    figure(
        f"{name}, {part['options']['head_tokens']} tokens, omlx / mlx-lm: "
        + ", ".join(
            f"{of} {ours:.2f} / {theirs:.2f} s, ratio {shown(cells[of])}"
            for of, (ours, theirs) in times.items()
        )
    )
    started = [median(part, side, "restart", "started") for side in ("omlx", "mlx-lm")]
    figure(
        f"{name}, start of the process to a first token: {started[0]:.1f} / {started[1]:.1f} s, "
        f"ratio {shown(ratio(part, 'started', 'restart'))}"
    )
    # A prefill that nothing was known of costs what the library's own costs.
    assert cells["cold"]["high95"] is None or cells["cold"]["high95"] >= 0.9
    assert median(part, "omlx", "again", "uncached") == 1


@pytest.mark.parametrize("name", DENSE)
def test_streams(result: Any, name: str, figure: Figure) -> None:
    part = result["parts"][name]
    found = {num: ratio(part, "rate", "streams", num) for num in (1, 2, 4, 8)}
    figure(f"{name}, rate of streams: " + ", ".join(f"{n}: {shown(r)}" for n, r in found.items()))
    for num, one in found.items():
        assert one["high95"] is None or one["high95"] >= 0.9, f"{num} streams"


def test_the_case_that_the_field_quotes(result: Any, figure: Figure) -> None:
    part = result["parts"]["hybrid"]
    theirs = {of: median(part, "mlx-lm", of) for of in ("cold", "again", "swapped")}
    restarts = [
        m["spread"]["median"]
        for m in part["measures"]
        if (m["name"], m["side"], m["case"]["of"]) == ("ttft", "mlx-lm", "restart")
    ]
    shown_restart = f"{restarts[0]:.2f} s" if restarts else "as cold: it keeps nothing"
    cases = (*theirs, "restart")
    ours = {of: median(part, "omlx", of) for of in cases}
    figure(
        "27B hybrid shape, 16,700 tokens, omlx / mlx-lm: "
        + ", ".join(f"{of} {ours[of]:.2f} / {theirs[of]:.2f} s" for of in theirs)
        + f", restart {ours['restart']:.2f} s / {shown_restart}"
    )
    for of in ("again", "swapped"):
        assert ours[of] < ours["cold"] / 4, of
    assert ours["restart"] < ours["cold"], "restored, or computed where that is faster"
