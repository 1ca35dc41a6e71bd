"""Finding running servers and asking them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from omlx.client import RunningServer, get_json, running_servers
from omlx.errors import ServerError
from tests.fakes.http import JsonServer


def _write(folder: Path, name: str, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text)


def test_only_servers_that_live_are_found(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    alive = {"pid": os.getpid(), "address": "http://127.0.0.1:8000", "version": "0.1.0"}
    _write(tmp_path, "server-8000.json", alive)
    _write(tmp_path, "server-8001.json", {**alive, "pid": ended.pid})
    _write(tmp_path, "server-8002.json", {**alive, "pid": "1"})
    _write(tmp_path, "server-8003.json", {**alive, "pid": -1})
    _write(tmp_path, "server-8004.json", {**alive, "pid": 10**30})
    _write(tmp_path, "server-8005.json", {"pid": os.getpid()})
    _write(tmp_path, "server-8006.json", "[")
    _write(tmp_path, "server-8007.json", "[" * 9_000)
    _write(tmp_path, "server-8008.json", [1])
    _write(tmp_path, "other.json", alive)
    _write(tmp_path, "server-8009.json", {**alive, "pid": 1, "cache_dir": "/c", "more": 1})
    (tmp_path / "server-8010.json").mkdir()
    assert running_servers(tmp_path) == [
        RunningServer(os.getpid(), "http://127.0.0.1:8000", "0.1.0"),
        RunningServer(1, "http://127.0.0.1:8000", "0.1.0", Path("/c")),
    ]


def test_no_state_folder_means_no_servers(tmp_path: Path) -> None:
    assert running_servers(tmp_path / "none") == []


def test_an_answer_is_a_json_object() -> None:
    with JsonServer({"/a": {"x": 1}, "/b": [1]}) as server:
        assert get_json(server.address, "/a") == {"x": 1}
        with pytest.raises(ServerError, match="answers /b with no JSON object"):
            get_json(server.address, "/b")
        with pytest.raises(ServerError, match="answers /c with 404"):
            get_json(server.address, "/c")
        server.raw = b"\xff"
        with pytest.raises(ServerError, match="answers /a with no JSON object"):
            get_json(server.address, "/a")


def test_a_key_is_asked_for_and_sent() -> None:
    with JsonServer({"/a": {}}) as server:
        server.api_key = "hush"
        with pytest.raises(ServerError, match="asks for an API key") as caught:
            get_json(server.address, "/a", api_key="wrong")
        assert "OMLX_SERVER_API_KEY" in caught.value.hint
        assert get_json(server.address, "/a", api_key="hush") == {}


def test_a_server_on_all_addresses_is_asked_on_loopback() -> None:
    with JsonServer({"/a": {"x": 1}}) as server:
        assert get_json(f"http://0.0.0.0:{server.port}", "/a") == {"x": 1}


def test_a_server_that_does_not_answer() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ServerError, match="does not answer: .*refused"):
            get_json(address, "/a")
        bound.listen()
        with pytest.raises(ServerError, match="does not answer: timed out"):
            get_json(address, "/a", timeout_s=0.01)


@pytest.mark.parametrize(
    "address", ["", "nowhere", "ftp://127.0.0.1:1", "http://", "http://x:y", "http://[::1", "\0"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ServerError, match="is not the address of a server"):
        get_json(address, "/a")


def test_a_key_that_no_header_can_carry_is_an_error() -> None:
    with (
        JsonServer({"/a": {}}) as server,
        pytest.raises(ServerError, match="does not answer"),
    ):
        get_json(server.address, "/a", api_key="a\nb")


def test_a_key_that_opens_too_little_gets_a_hint() -> None:
    with JsonServer({"/x": {}}) as server:
        server.status = 403
        with pytest.raises(ServerError, match="refuses") as caught:
            get_json(server.address, "/x")
        assert "scope admin" in caught.value.hint
