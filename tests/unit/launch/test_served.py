"""What a server offers, as clients on this machine reach it."""

import pytest

from omlx.client import RunningServer
from omlx.errors import ServerError
from omlx.launch.served import Offer, base_url, load, offers
from tests.fakes.http import JsonServer


def server_at(fake: JsonServer) -> RunningServer:
    return RunningServer(1, fake.address, "1")


def test_offers_are_the_names_with_their_windows() -> None:
    data = [
        {"id": "a", "context_window": 8192, "root": "a"},
        {"id": "a:fast", "context_window": 4096, "root": "a"},
        {"id": "b", "context_window": None},
        {"id": "c", "context_window": "many"},
        {"id": 3},
        "d",
        None,
    ]
    with JsonServer({"/v1/models": {"data": data}}) as fake:
        assert offers(server_at(fake), None) == [
            Offer("a", 8192),
            Offer("a:fast", 4096, is_main=False),
            Offer("b", None),
            Offer("c", None),
        ]
    with JsonServer({"/v1/models": {"data": "none"}}) as fake:
        assert offers(server_at(fake), None) == []


def test_a_load_says_what_the_server_says() -> None:
    path = "/v1/models/org/m%20x:fast/load"
    with JsonServer({path: {"id": "m"}}) as fake:
        load(server_at(fake), "org/m x:fast", None)
        assert fake.posted == [path]
        fake.status = 403  # a key for the models only: the first request loads it
        load(server_at(fake), "org/m x:fast", None)
    with JsonServer({path: {"error": {"message": "too large"}}}) as fake:
        fake.status = 507
        with pytest.raises(ServerError, match="too large"):
            load(server_at(fake), "org/m x:fast", None)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0:8001", "http://127.0.0.1:8001"),
        ("http://[::]:8001", "http://[::1]:8001"),
        ("https://omlx.example:8443/", "https://omlx.example:8443"),
    ],
)
def test_the_address_that_clients_use(address: str, expected: str) -> None:
    assert base_url(address) == expected


def test_a_unix_socket_is_no_use_to_clients() -> None:
    with pytest.raises(ServerError, match="agents can't use"):
        base_url("unix:/run/omlx.sock")
