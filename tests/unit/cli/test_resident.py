"""`omlx model load` and `omlx model unload`: which server is asked, and what is said."""

import json
import os
from pathlib import Path

import pytest

from tests.fakes.http import JsonServer
from tests.unit.cli.conftest import Cli


def leave_state(home: Path, *servers: JsonServer) -> None:
    folder = home / "state"
    folder.mkdir(parents=True)
    for server in servers:
        state = {"pid": os.getpid(), "address": server.address, "version": "1"}
        (folder / f"server-{server.port}.json").write_text(json.dumps(state))


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_the_server_that_has_the_model_is_asked(verb: str, cli: Cli, home: Path) -> None:
    path = f"/v1/models/org/my%20model/{verb}"
    other, right = JsonServer({}), JsonServer({path: {"id": "my model", "state": "well"}})
    with other, right:
        leave_state(home, other, right)
        outcome = cli("model", verb, "org/my model")
        assert (outcome.code, outcome.out, outcome.err) == (0, "my model: well\n", "")
        assert right.posted == [path]


def test_what_the_server_says_is_the_error(cli: Cli, home: Path) -> None:
    path = "/v1/models/m/unload"
    with JsonServer({path: {"error": {"message": "The model 'm' has 2 requests"}}}) as server:
        server.status = 409
        leave_state(home, server)
        outcome = cli("model", "unload", "m")
        assert (outcome.code, outcome.err) == (1, "error: The model 'm' has 2 requests\n")
        server.api_key = "secret"
        outcome = cli("model", "unload", "m")
        assert outcome.code == 1 and "asks for an API key" in outcome.err
        outcome = cli("model", "unload", "m", "--api-key", "secret")
        assert outcome.err == "error: The model 'm' has 2 requests\n"


def test_no_server_and_no_such_model(cli: Cli, home: Path) -> None:
    outcome = cli("model", "load", "m")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: no server is running\nhint: omlx serve starts one\n"
    with JsonServer({}) as server:
        leave_state(home, server)
        outcome = cli("model", "load", "m")
        assert outcome.code == 1 and "no running server has the model 'm'" in outcome.err
