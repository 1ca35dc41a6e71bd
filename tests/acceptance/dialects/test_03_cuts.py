"""Point 3: every sample of every parser, cut at every byte, and short ones at every pair of bytes,
is taken apart the same."""

from collections import Counter

import pytest

from omlx.server.parse.formats import call_formats
from omlx.server.parse.reasoning import REASONING
from tests.acceptance.conftest import Figure
from tests.acceptance.dialects.runs import outcomes
from tests.unit.server.parse import samples, samples_xml


@pytest.mark.timeout(1200)
def test_every_cut_gives_the_same(figure: Figure) -> None:
    found = outcomes(["tests/unit/server/parse"], timeout_s=1100)
    by_format = {**samples.SAMPLES, **samples_xml.SAMPLES}
    figure(
        f"{sum(map(len, by_format.values()))} samples of {len(by_format)} formats of calls, and "
        f"those of {len(REASONING)} kinds of reasoning, cut at every byte, up to 120 characters at "
        f"every pair of bytes: {dict(Counter(found.values()))} tests"
    )
    assert set(found.values()) == {"passed"}
    assert set(call_formats()) <= set(by_format), "a format without samples"
    assert sum("pair" in name for name in found) >= len(by_format)
