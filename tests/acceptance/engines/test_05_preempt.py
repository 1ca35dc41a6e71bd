"""Point 5: preempt and resume at random steps, 100 times for each of ten architectures."""

from pathlib import Path

import pytest

from omlx.engine.turns import Stage
from tests.acceptance.conftest import Figure
from tests.fakes import tiny
from tests.fakes.preempting import preempt_at_random


@pytest.mark.parametrize("kind", tiny.CONFIGS)
def test_preempted_a_hundred_times(kind: str, tmp_path: Path, figure: Figure) -> None:
    counts, num_answers, num_ties = preempt_at_random(kind, tmp_path, least=100)
    stages = ", ".join(f"{count} {stage.value}" for stage, count in counts.items())
    figure(
        f"{kind}: {sum(counts.values())} preemptions ({stages}), {num_answers} answers with the "
        f"tokens of an undisturbed run, {num_ties} of them up to a tie of the two best logits"
    )
    assert sum(counts.values()) >= 100
    assert counts[Stage.DECODING] > counts[Stage.READY]
