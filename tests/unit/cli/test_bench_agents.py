"""`omlx bench verify` and `omlx bench agent` against a server that is no omlx of this machine."""

import json
import sys
from pathlib import Path

import pytest

from omlx.bench.verify import CONCURRENT, NAMES, RESTART, SAME, TOOLS
from tests.fakes.caching import CachingServer, Habits
from tests.unit.cli.conftest import Cli

TRACES = Path(__file__).resolve().parents[2] / "data" / "traces"
TRACE = str(TRACES / "agent-22.json")


def test_four_checks_as_json_and_as_a_table(cli: Cli, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    with CachingServer() as server:
        outcome = cli("bench", "verify", "--url", server.url, "--json", "--html", str(html))
        text = cli("bench", "verify", "--url", server.url + "/v1", "--model", "fake")
    assert outcome.code == 0 == text.code, outcome.err
    (line,) = outcome.out.splitlines()
    found = json.loads(line)
    assert {check["name"]: check["passed"] for check in found["checks"]} == {
        SAME: True,
        RESTART: None,
        TOOLS: True,
        CONCURRENT: True,
    }
    assert found["sides"]["server"]["url"] == server.url
    assert "verify 0/4: same request twice" in outcome.err
    assert all(name in text.out for name in NAMES) and "not checked" in text.out
    assert "the second time 1 of" in html.read_text()


def test_one_that_fails_is_an_error(cli: Cli) -> None:
    with CachingServer(Habits(is_caching=False)) as server:
        outcome = cli("bench", "verify", "--url", server.url, "--json")
    assert outcome.code == 1
    said = "error: the prefix cache does not do what it should: same request twice, tools"
    assert said in outcome.err
    checks = json.loads(outcome.out)["checks"]
    assert [check["passed"] for check in checks] == [False, None, False, False]


def restart_command(tmp_path: Path, code: int = 0) -> str:
    """A command that leaves a mark and ends with a code."""
    script = f"import pathlib, sys; pathlib.Path({str(tmp_path / 'mark')!r}).touch(); "
    return f'{sys.executable} -c "{script}sys.exit({code})"'


def test_a_restart_command_is_run_and_believed_only_if_the_server_began_anew(
    cli: Cli, tmp_path: Path
) -> None:
    with CachingServer() as server:
        args = ("bench", "verify", "--url", server.url, "--json")
        outcome = cli(*args, "--restart-command", restart_command(tmp_path))
        assert (tmp_path / "mark").exists()
        failed = cli(
            *args, "--restart-command", f"echo no luck >&2; {restart_command(tmp_path, 3)}"
        )
    for found, word in ((outcome, "was not restarted"), (failed, "ended with 3: no luck")):
        assert found.code == 1
        check = json.loads(found.out)["checks"][1]
        assert (check["name"], check["passed"]) == (RESTART, False)
        assert word in check["reason"]
    with CachingServer(Habits(is_omlx=False)) as server:
        outcome = cli("bench", "verify", "--url", server.url, "--json",
                      "--restart-command", restart_command(tmp_path))  # fmt: skip
    assert outcome.code == 0, "another server can't be asked for how long it has run"


def test_a_replay_as_json_and_as_tables(cli: Cli) -> None:
    with CachingServer(Habits(window=4096)) as server:
        args = ("bench", "agent", TRACE, "--url", server.url, "--agents", "2")
        outcome = cli(*args, "--json")
        text = cli(*args, "--turns", "2", "--scale", "0.01", "--replies", "server")
    assert outcome.code == 0 == text.code, outcome.err
    found = json.loads(outcome.out)
    assert found["options"]["traces"] == ["agent-22"]
    assert 0.05 < found["options"]["scale"] < 0.12
    assert len(found["rows"]) == 16
    assert max(row["prompt"] for row in found["rows"]) < 4096
    assert any("a word was taken for a token" in note for note in found["notes"])
    assert "uncached tokens a turn p50" in " ".join(text.out.split())
    assert "one by one" in text.out and "hit rate" in text.out


def test_without_files_the_traces_of_omlx_are_taken(cli: Cli) -> None:
    with CachingServer() as server:
        outcome = cli("bench", "agent", "--url", server.url, "--turns", "1", "--json")
    assert json.loads(outcome.out)["options"]["traces"] == ["agent-01", "agent-10", "agent-22"]


def test_a_window_that_is_not_known_has_to_be_named(cli: Cli) -> None:
    with CachingServer(Habits(window=None)) as server:
        args = ("bench", "agent", TRACE, "--url", server.url, "--turns", "1")
        outcome = cli(*args)
        assert outcome.code == 1 and "hint: --window or --scale" in outcome.err
        assert cli(*args, "--window", "2048", "--json").code == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("verify", "--restart-command", "true"), 2, "--restart-command needs --url"),
        (("verify", "--url", "http://h:1", "--demo"), 2, "--url and --demo exclude each other"),
        (("verify", "--tokens", "10"), 2, "10 is not in the range"),
        (("verify", "--url", "nonsense"), 1, "'nonsense' is not the address of a server"),
        (("verify", "--url", "http://127.0.0.1:9"), 1, "http://127.0.0.1:9 does not answer"),
        (("agent", "--url", "http://h:1", "--demo"), 2, "--url and --demo exclude each other"),
        (("agent", "--window", "4096"), 2, "--window needs --url"),
        (("agent", "--key", "k"), 2, "--key needs --url"),
        (("agent", "--scale", "2"), 2, "'2' is neither auto nor a number above 0"),
        (("agent", "--scale", "nan"), 2, "'nan' is neither auto nor a number above 0"),
        (("agent", "--max-think", "soon"), 2, "'soon' is not a number with a unit"),
        (("agent", "--demo", "none.json"), 1, "none.json can't be read"),
    ],
)
def test_what_is_asked_wrongly(cli: Cli, args: tuple[str, ...], code: int, said: str) -> None:
    outcome = cli("bench", *args)
    assert outcome.code == code, outcome.err
    assert said in outcome.err
    assert outcome.out == ""
