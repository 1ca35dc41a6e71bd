"""Point 6: the cases Q1, Q3, T2 and T3 (the numbering has gaps): tests name them, and all pass."""

from collections import defaultdict

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.dialects.runs import ROOT, outcomes
from tests.acceptance.named import named

CASES = ("Q1", "Q3", "T2", "T3")


@pytest.mark.timeout(900)
def test_every_case(figure: Figure) -> None:
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for folder in ("tests/unit", "tests/e2e"):
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            for case, name in named(path):
                if case in CASES:
                    tests[case].append(f"{path.relative_to(ROOT)}::{name}")
    assert {*tests} == {*CASES}
    done = outcomes(sorted({node for found in tests.values() for node in found}), timeout_s=800)
    wrong = sorted(name for name, outcome in done.items() if outcome != "passed")
    numbers = {
        case: sum(name.partition("[")[0] in found and outcome == "passed"
                  for name, outcome in done.items())
        for case, found in sorted(tests.items())
    }  # fmt: skip
    figure(
        f"{len(CASES)} cases, {len(done)} tests: "
        + " ".join(f"{case}:{number}" for case, number in numbers.items())
        + (f"; not passed: {wrong}" if wrong else "")
    )
    assert not wrong
    assert all(numbers.values())
