"""One server for most tests; each test gets it as new."""

from collections.abc import Iterator

import pytest

from omlx.engine.request import EngineSnapshot, EngineState
from tests.fakes.engine import say
from tests.fakes.server import Running, running


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Running]:
    with running() as server:
        yield server


@pytest.fixture
def server(shared_server: Running) -> Running:
    engine = shared_server.engine
    engine.script = say("ok")
    engine.submitted.clear()
    engine.aborted.clear()
    engine.figures = EngineSnapshot()
    engine.become(EngineState.READY)
    return shared_server
