"""Point 2: the A, R, K, T and X cases, and P22: each has tests that name it, and all pass.

tests/acceptance/named.py says how a test names a case.
"""

from collections import defaultdict

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.dialects.runs import ROOT, outcomes
from tests.acceptance.named import named

# The numbering has gaps.
CASES = (
    *(f"A{n}" for n in (1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15)),
    *(f"R{n}" for n in (1, 2, 3, 5, 6, 8)),
    *(f"K{n}" for n in (1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 17, 18, 20, 21, 23, 24, 25)),
    *("T2", "T3"),
    *(f"X{n}" for n in (1, 3, 4, 6, 7, 8, 10, 11)),
    "P22",
)


@pytest.mark.timeout(900)
def test_every_case(figure: Figure) -> None:
    tests: defaultdict[str, set[str]] = defaultdict(set)
    folders = ("tests/unit", "tests/acceptance/dialects", "tests/fault")
    for folder in folders:
        for path in (ROOT / folder).rglob("test_*.py"):
            for case, name in named(path):
                if case in CASES:
                    tests[case].add(f"{path.relative_to(ROOT)}::{name}")
    missing = [case for case in CASES if not tests[case]]
    nodes = sorted({node for found in tests.values() for node in found})
    done = outcomes(nodes, timeout_s=800)
    passed = {case: 0 for case in CASES}
    wrong: list[str] = []
    for name, outcome in done.items():
        plain = name.partition("[")[0]
        for case in (case for case in CASES if plain in tests[case]):
            passed[case] += outcome == "passed"
        wrong += [name] if outcome != "passed" else []
    figure(
        f"{len(CASES)} cases, {len(done)} tests: "
        + " ".join(f"{case}:{num}" for case, num in passed.items())
        + (f"; without a test: {missing}" if missing else "")
        + (f"; not passed: {wrong}" if wrong else "")
    )
    assert not missing and not wrong
    assert all(passed.values())
