"""Point 4: experts, hybrids, MLA, state models, windows, tied embeddings, each a tiny model: sane
allocations, finite outputs, and an error against float32 that falls with every step of bits."""

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.dialects.runs import outcomes
from tests.e2e.test_quantize_kinds import BITS, KINDS

FILE = "tests/e2e/test_quantize_kinds.py"


@pytest.mark.timeout(1200)
def test_every_kind(figure: Figure) -> None:
    done = outcomes([FILE], timeout_s=1100)
    passed = {kind for kind in KINDS if done.get(_name(kind)) == "passed"}
    wrong = sorted(name for name, outcome in done.items() if outcome != "passed")
    figure(
        f"{len(passed)} of {len(KINDS)} kinds ({', '.join(sorted(passed))}) at "
        f"{', '.join(f'{bits + 1:g}' for bits in BITS)} bits: measured and predicted KL fall with "
        "bits, to less than a quarter" + (f"; not passed: {wrong}" if wrong else "")
    )
    assert passed == {*KINDS}
    assert not wrong


def _name(kind: str) -> str:
    return f"{FILE}::test_more_bits_are_less_error_and_sizes_are_kept[{kind}]"
