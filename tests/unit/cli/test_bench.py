"""`omlx bench`: what it takes, whom it asks, and what it says is wrong."""

import json
import os
import signal
from pathlib import Path

import click
import pytest

from omlx.cli.benching.options import Numbers, Sizes, check_html, ending_servers, show
from omlx.errors import OmlxError
from tests.fakes.model_folder import write_model_folder
from tests.fakes.streaming import DONE, HEAD, StreamServer, Talk, answer, text, usage
from tests.unit.bench.reports import make_report
from tests.unit.cli.conftest import Cli


def _numbers(value: str, low: int = 1) -> tuple[int, ...]:
    return Numbers(low).convert(value, None, None)


def test_numbers_of_tokens() -> None:
    assert _numbers("512, 2k,128K") == (512, 2048, 131072)
    assert _numbers("8,2,8") == (2, 8)


@pytest.mark.parametrize("value", ["", "x", "1,,2", "-1", "1.5", "2m", "²"])
def test_what_is_no_number(value: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a whole number, as in 512 or 2k"):
        _numbers(value)


def test_numbers_that_are_too_small() -> None:
    with pytest.raises(click.BadParameter, match="0 is less than 1"):
        _numbers("4,0")


def test_sizes() -> None:
    assert Sizes().convert("100MB,2GB", None, None) == (100_000_000, 2_000_000_000)
    assert Sizes().convert("none", None, None) == ()
    for value, said in (("0", "0 bytes"), ("1XB", "unknown unit"), ("", "not a number")):
        with pytest.raises(click.BadParameter, match=said):
            Sizes().convert(value, None, None)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["cache", "--kinds", "full,odd"], "--kinds: 'odd' is none of full, mla, window, state"),
        (["cache", "--rates", "fast"], "Invalid value for '--rates': 'fast' is not a number"),
        (["cache", "--key", "k"], "--key needs --url"),
        (["throughput", "--key", "k"], "--key needs --url"),
        (["concurrency", "--key", "k"], "--key needs --url"),
        (["throughput", "--tokens", "1x"], "Invalid value for '--tokens': '1x' is not a whole"),
        (["throughput", "--url", "http://h", "--only", "process"], "--only process measures a"),
        (["concurrency", "--streams", "0"], "Invalid value for '--streams': 0 is less than 1"),
        (["cache", "--demo", "--model", "x"], "--model and --demo exclude each other"),
        (["cache", "--rounds", "0"], "Invalid value for '--rounds': 0 is not in the range"),
    ],
)
def test_wrong_usage(cli: Cli, args: list[str], error: str) -> None:
    outcome = cli("bench", *args)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {error}")


def test_a_model_that_is_not_there(cli: Cli) -> None:
    outcome = cli("bench", "throughput")
    assert outcome.code == 1
    assert outcome.err.startswith("error: no models in ")
    write_model_folder(Path.cwd(), "one")
    outcome = cli("bench", "throughput", "--model-dir", ".", "--model", "two")
    assert outcome.err.startswith("error: there is no model 'two'")


def test_one_of_several_models_has_to_be_named(cli: Cli) -> None:
    for name in ("one", "two"):
        write_model_folder(Path.cwd(), name)
    outcome = cli("bench", "concurrency", "--model-dir", ".")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --model says which of 2 models: one, two")


def test_a_prompt_beyond_the_window(cli: Cli) -> None:
    folder = write_model_folder(Path.cwd(), "one")
    outcome = cli("bench", "concurrency", "--model", str(folder), "--tokens", "9999")
    assert outcome.code == 1
    assert "are more than the model's window of 4096" in outcome.err
    outcome = cli("bench", "throughput", "--model", str(folder), "--tokens", "8k")
    assert outcome.code == 1
    assert "error: no length fits the model's window of 4096 tokens" in outcome.err


def test_a_page_that_can_not_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OmlxError, match="--html: .* cannot be written: No such file"):
        check_html(str(tmp_path / "none" / "page.html"))
    assert check_html(None) is None
    page = tmp_path / "page.html"
    assert check_html(str(page)) == page
    assert not page.exists()
    page.write_text("old")
    check_html(str(page))
    assert page.read_text() == "old"


def test_a_server_at_a_url(cli: Cli) -> None:
    prompts: list[str] = []

    def script(talk: Talk) -> None:
        if talk.body is None:
            return talk.send(answer("200 OK", {"data": [{"id": "only"}]}))
        prompt = talk.body["prompt"]
        number = len(prompt.split())
        cached = number - 1 if prompt in prompts else 0
        prompts.append(prompt)
        return talk.send(
            HEAD, text("a"), text("b"), text("", "length"), usage(number, 2, cached), DONE
        )

    with StreamServer(script) as server:
        outcome = cli(
            "bench", "cache", "--url", server.url, "--tokens", "40", "--rounds", "2", "--json"
        )
        heads = [talk.head for talk in server.talks]
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["model"] == "only"
    uncached = {m["case"]["step"]: m for m in found["measures"] if m["name"] == "uncached"}
    assert uncached["miss"]["samples"] == [40, 40]
    assert uncached["repeat"]["samples"] == [1, 1]
    assert uncached["repeat"]["label"]["start"] == "mixed"
    assert any("can't be measured of a server that others run" in note for note in found["notes"])
    assert len(heads) == 1 + 1 + 4  # the list, the one that is not counted, two rounds of two
    assert "cache 2/2: done" in outcome.err


def test_throughput_and_concurrency_of_a_server_at_a_url(cli: Cli, tmp_path: Path) -> None:
    def script(talk: Talk) -> None:
        number = len(talk.body["prompt"].split())
        talk.send(HEAD, *[text("a")] * 8, text("", "length"), usage(number, 8, 0), DONE)

    page = tmp_path / "page.html"
    with StreamServer(script) as server:
        asked = ("--url", server.url, "--model", "m", "--key", "k", "--rounds", "1")
        first = cli("bench", "throughput", *asked, "--tokens", "20,30", "--html", str(page))
        second = cli("bench", "concurrency", *asked, "--tokens", "20", "--streams", "1,2")
        keys = {"Authorization: Bearer k" in talk.head for talk in server.talks}
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert "prefill (tokens/s)" in first.out
    assert "TTFT (s)" in second.out
    assert "ttft (s)" in page.read_text()
    assert keys == {True}


def test_several_models_of_a_server(cli: Cli) -> None:
    body = {"data": [{"id": "a"}, {"id": "b"}]}
    with StreamServer(lambda talk: talk.send(answer("200 OK", body))) as server:
        outcome = cli("bench", "cache", "--url", server.url)
    assert outcome.code == 2
    assert f"--model says which model of {server.url} is meant; it has: a, b" in outcome.err


def test_a_server_that_dies_is_one_line(cli: Cli) -> None:
    with StreamServer(lambda talk: talk.send(HEAD, text("a"))) as server:
        outcome = cli("bench", "cache", "--url", server.url, "--model", "m")
    assert (outcome.code, outcome.out) == (1, "")
    assert "ended its stream before the answer was whole" in outcome.err
    assert "Traceback" not in outcome.err


def test_the_document_is_the_last_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    show(make_report(), as_json=True, html=page)
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1])["schema"] == 1
    assert shown.err == f"page: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_sigterm_ends_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ending_servers():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before
