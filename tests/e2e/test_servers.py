"""Two real servers on one directory, killed and started again, beside commands and hands that
remove files: answers are those of a plain run. The soak, for some seconds."""

from argparse import Namespace
from pathlib import Path

import pytest

from scripts.bench.soak import Soak

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_two_servers_on_one_directory(tmp_path: Path) -> None:
    wanted = Namespace(minutes=0.2, kill_every=5.0, seed=2, clients=4, max_size="2MB", warm_up=0.0)
    soak = Soak(tmp_path, wanted, {"first": ["kv"], "second": ["kv"]})
    try:
        soak.run()
        result = soak.result()
    finally:
        soak.reference.close()
    assert result["problems"] == []
    assert result["wrong"] == [] and result["errors"] == []
    assert result["answers"]["compared"] > 5 and sum(result["kills"].values()) > 0
    directory = result["directory"]
    assert directory["num_over"] == 0 and directory["bytes_left"] <= directory["budget_bytes"]
    assert directory["temps_left"] == directory["temps_in_state"] == directory["verify_after"] == 0
