"""How a server of a bench is started: only with what it is told."""

import os
from pathlib import Path

import pytest

from omlx.bench.failure import BenchError
from omlx.bench.measured import server_facts
from omlx.bench.servers import Serve, Server, arguments

MODELS = (Path("/models/a"),)


def test_the_options_of_a_server() -> None:
    serve = Serve(MODELS, {"cache.enabled": False, "cache.memory_size": 5, "engine.blas": "off"})
    assert arguments(serve) == [
        "--model-dir=/models/a",
        "--host=127.0.0.1",
        "--port=0",
        "--no-hub-cache",
        "--preload=always",
        "--no-cache",
        "--cache-memory-size=5",
        "--blas=off",
    ]


def test_settings_are_those_that_were_given_last() -> None:
    serve = Serve(MODELS, {"engine.preload": "never"}).having({"server.port": 99})
    words = arguments(serve.having({"server.port": 100}))
    assert words.count("--preload=never") == 1
    assert "--port=100" in words and "--port=99" not in words


def test_lists_are_given_one_by_one() -> None:
    words = arguments(Serve(MODELS, {"server.cors_origins": ("https://a", "https://b")}))
    assert [word for word in words if "https" in word] == [
        "--cors-origins=https://a",
        "--cors-origins=https://b",
    ]


def test_a_setting_that_there_is_not() -> None:
    with pytest.raises(BenchError, match=r"no setting 'cache\.size'"):
        arguments(Serve(MODELS, {"cache.size": 1}))


def test_no_place_of_the_user_is_in_the_facts() -> None:
    facts = server_facts(Serve((Path("/home/someone/models/a"),)))
    assert "/home" not in str(facts)
    assert str(facts["command"]).startswith("omlx serve --model-dir=a ")


def test_nothing_of_the_users_reaches_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_SERVER_API_KEY", "secret")
    monkeypatch.setenv("OMLX_CACHE_ENABLED", "false")
    monkeypatch.setenv("SANIC_X", "1")
    server = Server(Serve(MODELS))
    try:
        env = server._environment()
        named = {name for name in env if name.startswith(("OMLX_", "SANIC_"))}
        assert named == {"OMLX_HOME"}
        assert env["OMLX_HOME"] == str(server.home)
        assert env["PATH"] == os.environ["PATH"]
    finally:
        server.close()
    assert not server.home.exists()


def test_a_server_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    server = Server(Serve((tmp_path / "none",)))
    with pytest.raises(BenchError, match="omlx ended before it was ready") as caught, server:
        raise AssertionError("it started")
    assert "the model folder" in caught.value.message
    assert not server.home.exists()


def test_a_home_that_was_given_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    server = Server(Serve((tmp_path / "none",)), home=home)
    with pytest.raises(BenchError), server:
        pass
    assert (home / "serve.log").is_file()
    assert server.store == home / "cache"
    assert Server(Serve(MODELS, {"cache.dir": "/x"}), home=home).store == Path("/x")
