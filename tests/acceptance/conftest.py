"""What acceptance tests share: the figure that each point prints, and the model it runs on."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import models

Figure = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Acceptance is outside CI: scripts/accept runs it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Record a figure of the point under test; scripts/accept prints it."""

    def record(text: str) -> None:
        print(f"figure: {text}")
        path = os.environ.get("ACCEPT_FIGURES")
        if path:
            with Path(path).open("a") as file:
                file.write(json.dumps({"test": request.node.nodeid, "figure": text}) + "\n")

    return record


@pytest.fixture(scope="session")
def demo() -> Path:
    """The directory of the demo model."""
    return models.demo_model()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that can be served."""
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))
