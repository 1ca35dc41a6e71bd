"""Windows against what clients send first."""

import pytest

from omlx.launch.catalog import read_catalog
from omlx.launch.fits import Fit, fit, need, those_that_fit
from omlx.settings.places import data_dir

CLIENTS = read_catalog(data_dir("profiles") / "clients")


@pytest.mark.parametrize(
    ("name", "window", "expected"),
    [
        ("claude-code", 8192, Fit.NOT),
        ("claude-code", 12_999, Fit.NOT),
        ("claude-code", 13_000, Fit.TIGHT),
        ("claude-code", 24_999, Fit.TIGHT),
        ("claude-code", 25_000, Fit.WELL),
        ("pi", 8192, Fit.WELL),
        ("hermes", 63_999, Fit.NOT),
        ("hermes", 64_000, Fit.WELL),
        ("cursor", 1, Fit.WELL),
    ],
)
def test_how_a_client_fits(name: str, window: int, expected: Fit) -> None:
    assert fit(CLIENTS[name], window) is expected


def test_those_that_fit_come_with_the_smallest_first() -> None:
    names = [client.name for client in those_that_fit(CLIENTS.values(), 8192)]
    assert names == ["aider", "pi", "continue", "cline"]
    assert those_that_fit(CLIENTS.values(), 100) == []
    assert len(those_that_fit(CLIENTS.values(), 131_072)) == 13
    assert need(CLIENTS["hermes"]) == 64_000
