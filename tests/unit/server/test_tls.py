"""Servers with TLS and on Unix sockets: who can connect, what is left behind, bad files."""

import contextlib
import json
import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from omlx.client import get_json, post, running_servers
from omlx.errors import ServerError
from omlx.server.statefile import state_path, write_state
from omlx.server.tls import fingerprint, tls_context
from omlx.server.unixsocket import bound_unix, unix_address
from omlx.settings.schema import Server
from tests.fakes.engine import PATIENCE_S, say
from tests.fakes.server import Plan, running

TLS = Path(__file__).parents[2] / "data" / "tls"
CERT, KEY = TLS / "cert.pem", TLS / "key.pem"
OTHER = TLS / "other-cert.pem"


@pytest.fixture(scope="module")
def secure():
    with running(Plan(server=Server(port=0, tls_cert=CERT, tls_key=KEY))) as server:
        yield server


def trusting(version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=CERT)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


# ---- TLS


def test_answers_and_streams_over_tls(secure):
    assert secure.url.startswith("https://127.0.0.1:")
    secure.engine.script = say("ok")
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with httpx.Client(base_url=secure.url, verify=trusting(), timeout=PATIENCE_S) as client:
        assert client.get("/health").json()["status"] == "ready"
        assert "[DONE]" in client.post("/v1/chat/completions", json=body).text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_newer_versions_are_spoken(secure, version):
    with (
        socket.create_connection(("127.0.0.1", secure.port), PATIENCE_S) as sock,
        trusting(version).wrap_socket(sock, server_hostname="localhost") as tls,
    ):
        assert tls.version() == version.name.replace("_", ".")


def test_older_versions_are_not():
    context = tls_context(CERT, KEY)
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_plain_http_gets_nothing_and_does_no_harm(secure):
    with socket.create_connection(("127.0.0.1", secure.port), PATIENCE_S) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1" not in sock.recv(65536)
    assert get_json(secure.url, "/health", certificate=fingerprint(CERT))["status"] == "ready"


def test_commands_take_the_servers_own_certificate_only(secure, tmp_path):
    write_state(
        tmp_path,
        secure.url,
        cache_dir=tmp_path,
        started=datetime.now(UTC),
        certificate=fingerprint(CERT),
    )
    (found,) = running_servers(tmp_path)
    assert found.certificate == fingerprint(CERT)
    assert get_json(found.address, "/health", certificate=found.certificate)["status"] == "ready"
    status, _ = post(found.address, "/v1/models/fake/load", certificate=found.certificate)
    assert status == 200
    with pytest.raises(ServerError, match="does not show the certificate"):
        get_json(found.address, "/health", api_key="k", certificate=fingerprint(OTHER))
    with pytest.raises(ServerError, match="does not answer"):
        get_json(found.address, "/health")  # nobody that this machine trusts signed it


@pytest.mark.parametrize(
    ("cert", "key", "named"),
    [
        ("missing.pem", "key.pem", "missing.pem can't be read"),
        ("cert.pem", "missing.pem", "missing.pem can't be read"),
        ("key.pem", "key.pem", "key.pem is no PEM certificate"),
        ("cert.pem", "cert.pem", "cert.pem can't be used with the certificate"),
        ("cert.pem", "other-key.pem", "other-key.pem is not that of the certificate"),
        ("cert.pem", "locked-key.pem", "locked-key.pem can't be used"),
        (".", "key.pem", "can't be read"),
        ("cert.pem", None, "server.tls_key is not"),
        (None, "key.pem", "server.tls_cert is not"),
    ],
)
def test_files_that_can_not_be_used_are_named(cert, key, named):
    """L2: at the start, before anything is loaded."""
    server = Server(port=0, tls_cert=cert and TLS / cert, tls_key=key and TLS / key)
    plan = Plan(server=server)
    with pytest.raises(ServerError, match=named) as caught, running(plan):
        pass
    assert caught.value.hint


# ---- Unix sockets


def on_socket(path: Path) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(path), verify=False)
    return httpx.Client(transport=transport, base_url="http://anything", timeout=PATIENCE_S)


def test_a_server_on_a_unix_socket(tmp_path):
    path = tmp_path / "omlx.sock"
    umask = os.umask(0)
    try:
        with running(Plan(server=Server(unix_socket=path, host="0.0.0.0"))) as server:
            server.engine.script = say("ok")
            assert server.url == unix_address(path)
            status = path.lstat()
            assert stat.S_ISSOCK(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
            body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
            with on_socket(path) as client:
                assert client.post("/v1/chat/completions", json=body).status_code == 200
                evil = client.post("/v1/messages", json={}, headers={"origin": "https://evil.ex"})
                assert evil.status_code == 403
            assert get_json(server.url, "/health")["status"] == "ready"
    finally:
        os.umask(umask)
    assert not path.exists()


def test_commands_find_a_server_on_a_unix_socket(tmp_path):
    address = unix_address(tmp_path / "a b.sock")
    write_state(tmp_path, address, cache_dir=tmp_path, started=datetime.now(UTC))
    other = unix_address(tmp_path / "c.sock")
    assert state_path(tmp_path, address) != state_path(tmp_path, other)
    assert state_path(tmp_path, address).parent == tmp_path
    (found,) = running_servers(tmp_path)
    assert (found.address, found.certificate) == (address, None)
    with pytest.raises(ServerError, match="does not answer"):
        get_json(found.address, "/health")


def test_a_socket_that_was_left_behind_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with bound_unix(path) as listener:
        assert listener.getsockname() == str(path)
    assert not path.exists()


def test_a_socket_where_somebody_answers_is_not(tmp_path):
    path = tmp_path / "s"
    with bound_unix(path):
        with pytest.raises(ServerError, match="Another server listens"), bound_unix(path):
            pass
        assert path.exists()


def test_what_is_no_socket_stays(tmp_path):
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(ServerError, match="is no socket"), bound_unix(path):
        pass
    assert path.read_text() == "mine"
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ServerError, match="is no socket"), bound_unix(link):
        pass
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["missing/s", "x" * 200])
def test_a_path_that_can_not_be(tmp_path, name):
    with (
        pytest.raises(ServerError, match="Can't listen on the socket"),
        bound_unix(tmp_path / name),
    ):
        pass


def test_the_socket_of_a_later_server_is_not_removed(tmp_path):
    path = tmp_path / "s"
    with bound_unix(path):
        path.unlink()
        path.write_text("later")
    assert path.exists()


def test_a_unix_socket_takes_no_tls(tmp_path):
    server = Server(unix_socket=tmp_path / "s", tls_cert=CERT, tls_key=KEY)
    with pytest.raises(ServerError, match="needs no TLS"), running(Plan(server=server)):
        pass
    assert not (tmp_path / "s").exists()


def test_nothing_is_sent_to_what_shows_another_certificate(tmp_path):
    """The key goes only to the server itself."""
    context = tls_context(OTHER, TLS / "other-key.pem")
    assert context is not None
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock, context.wrap_socket(sock, server_side=True) as tls:
                try:
                    got.append(tls.recv(65536))
                except OSError:
                    got.append(b"")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerError, match="does not show the certificate"):
            get_json(address, "/x", api_key="secret", certificate=fingerprint(CERT))
        thread.join()
    assert b"secret" not in json.dumps([one.decode("latin-1") for one in got]).encode()
    assert got == [b""]
