"""The files of clients: what they may say, and what is said of those that are wrong."""

from pathlib import Path

import pytest

from omlx.errors import SettingsError, UsageError
from omlx.launch.catalog import Endpoint, find_client, read_catalog

GOOD = """
title = "Mine"
endpoint = "chat"
first_request_tokens = 1_000
executables = ["mine"]
least_version = "1.2"
install = "npm install -g mine"
"""


def test_a_good_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    (client,) = read_catalog(tmp_path).values()
    assert (client.name, client.title, client.endpoint) == ("mine", "Mine", Endpoint.CHAT)
    assert client.is_agent and client.executables == ("mine",) and client.least_window == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("title = ", "is not TOML"),
        ("\xff", "is not TOML"),
        ("a=" + "[" * 3000, "is not TOML"),
        ("# " + "x" * 200_000, "has more than"),
        (GOOD + "colour = 1\n", "unknown key 'colour'"),
        (GOOD.replace('"Mine"', "3"), "title must be a text"),
        (GOOD.replace('"Mine"', '"a\\u001b[2J"'), "title must be a text"),
        (GOOD.replace("title", "titel"), "title is missing"),
        (GOOD.replace('"chat"', '"grpc"'), "endpoint must be one of messages, responses, chat"),
        (GOOD.replace('endpoint = "chat"', ""), "endpoint is missing"),
        (GOOD.replace("1_000", "-1"), "first_request_tokens must be a whole number"),
        (GOOD.replace("1_000", "true"), "first_request_tokens must be a whole number"),
        (GOOD.replace("1_000", "10.5"), "first_request_tokens must be a whole number"),
        (GOOD.replace("1_000", "0"), "first_request_tokens must be a whole number"),
        (GOOD.replace('["mine"]', "[]"), "executables must be a list of texts"),
        (GOOD.replace('["mine"]', '["mine", 1]'), "executables must be a list of texts"),
        (GOOD.replace('["mine"]', '["../mine"]'), "executables must be texts like"),
        (GOOD.replace('["mine"]', '["a;rm -r"]'), "executables must be texts like"),
        (GOOD.replace('"1.2"', '"newest"'), "least_version must be like"),
        (GOOD + 'version_pattern = "("\n', "version_pattern must be a pattern with one group"),
        (GOOD + 'version_pattern = "x"\n', "version_pattern must be a pattern with one group"),
        (GOOD + 'kind = "robot"\n', "kind must be one of agent, editor"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "mine.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError) as raised:
        read_catalog(tmp_path)
    assert any(problem in one and "mine.toml" in one for one in raised.value.problems)


def test_all_problems_of_all_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("title = 1\n")
    (tmp_path / "B c.toml").write_text(GOOD)
    with pytest.raises(SettingsError) as raised:
        read_catalog(tmp_path)
    told = "\n".join(raised.value.problems)
    assert "title" in told and "least_version is missing" in told and "no name of a client" in told


def test_unknown_names_get_a_guess_and_the_list(tmp_path: Path) -> None:
    (tmp_path / "my-client.toml").write_text(GOOD)
    clients = read_catalog(tmp_path)
    assert find_client(clients, "my-client").title == "Mine"
    for name, guess in (("my-clint", " (did you mean 'my-client'?)"), ("mine", ""), ("zzz", "")):
        with pytest.raises(UsageError) as raised:
            find_client(clients, name)
        expected = guess or (" (did you mean 'my-client'?)" if name == "mine" else "")
        assert raised.value.message == f"unknown client '{name}'{expected}"
        assert raised.value.hint == "there are: my-client"
