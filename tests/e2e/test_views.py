"""The live views of the real binary on a real server, in real terminals of several sizes."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests import models
from tests.live import REPOSITORY, Live, chat, command, run_omlx, wait_until
from tests.tmux import Tmux

pytestmark = [pytest.mark.e2e, pytest.mark.tmux, pytest.mark.timeout(300)]
# A folder's name becomes the model's id.
HOSTILE = "evil\x1b]2;owned\x07\x1b[2J\x1b[31m\u202e模型"
LONG = "one two three four five six seven eight nine ten " * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, of which one has a name that a terminal would act on."""
    tiny = models.tiny_served_model(tmp_path_factory.mktemp("models"))
    (tiny.parent / HOSTILE).mkdir()
    for file in tiny.iterdir():
        (tiny.parent / HOSTILE / file.name).symlink_to(file)
    return tiny.parent


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def live(folder: Path, home: Path) -> Iterator[Live]:
    args = ("--model-dir", str(folder), "--cache-write-delay", "100ms")
    with Live(*args, home=home) as server:
        yield server


def ask(
    live: Live, model: str = "tiny", *, client: str = "claude-cli/2.0", text: str = LONG
) -> None:
    headers = {"User-Agent": client}
    status, body = live.post("/v1/chat/completions", chat(model, text), headers)
    assert status == 200, body


def asked_by(live: Live, client: str) -> dict[str, Any]:
    """What the server says of a client's last request, which it may count after its answer."""

    def found() -> list[dict[str, Any]]:
        return [one for one in live.status()["recent"] if one["client"] == client]

    wait_until(lambda: found() != [])
    return found()[0]


def top(*args: str) -> list[str]:
    return command("top", "--interval", "200ms", *args)


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (200, 50)])
def test_a_request_that_runs_is_seen_until_it_is_over(
    live: Live, home: Path, width: int, height: int
) -> None:
    ask(live)
    with Tmux(top(), home=home, width=width, height=height) as terminal:
        terminal.wait(lambda text: "no requests" in text)
        endless = chat("tiny", "go on", max_tokens=100_000)
        with closing(live.stream("/v1/chat/completions", endless)) as stream:
            next(stream)
            text = terminal.wait(
                lambda text: re.search(r" decode +[\d.,]+k? out", text) is not None
            )
        lines = text.split("\n")
        assert lines[0].startswith("omlx ")
        assert lines[1].startswith("uncached/turn  ")
        assert lines[2].startswith("TTFT           p50 ")
        assert any(line.startswith("1 request: 1 decoding") for line in lines)
        assert all(cell_len(line) <= width for line in lines)
        terminal.wait(lambda text: "no requests" in text)
        assert "38;5;" in terminal.colours()


def test_q_ends_it_and_the_terminal_is_as_before(live: Live, home: Path) -> None:
    with Tmux(home=home) as terminal:
        terminal.wait(lambda text: text.startswith("$"))
        terminal.type("before=$(stty -g)")
        for key, code in (("q", 0), ("C-c", 130)):
            terminal.type(" ".join(top()))
            terminal.wait(lambda text: text.startswith("omlx "))
            assert terminal.told("alternate_on") == "1"
            assert terminal.told("cursor_flag") == "0"
            terminal.keys(key)
            terminal.wait(lambda text: not text.startswith("omlx "))
            terminal.type('echo code=$? same=$([ "$before" = "$(stty -g)" ] && echo yes)')
            terminal.wait(lambda text, code=code: f"code={code} same=yes" in text)
            assert terminal.told("alternate_on") == "0"
            assert terminal.told("cursor_flag") == "1"


def test_another_size_is_taken_at_once(live: Live, home: Path) -> None:
    with Tmux(command("top", "--interval", "1h"), home=home) as terminal:
        terminal.wait(lambda text: "machine " in text)
        terminal.resize(200, 50)
        terminal.wait(lambda text: "hit rate " in text.split("\n")[1])
        terminal.resize(30, 10)
        terminal.wait(lambda text: cell_len(text.split("\n")[0]) <= 30 and "uncached" in text)


def test_a_server_that_is_killed_and_another_that_starts(folder: Path, tmp_path: Path) -> None:
    first = Live("--model-dir", str(folder), home=tmp_path, wait=False)
    with Tmux(top(), home=tmp_path) as terminal:
        terminal.wait(lambda text: f"127.0.0.1:{first.port}" in text)
        first.kill()
        text = terminal.wait(lambda text: "no server is running; waiting for one" in text)
        assert "memory" in text
        with Live("--model-dir", str(folder), home=tmp_path, wait=False) as second:
            text = terminal.wait(lambda text: f"127.0.0.1:{second.port}" in text)
            assert "waiting for one" not in text
            assert second.stop() == 0
            terminal.wait(lambda text: "waiting for one" in text)


def test_names_that_a_terminal_would_act_on(live: Live, home: Path) -> None:
    ids = [one["id"] for one in live.get("/v1/models")["data"]]
    (hostile,) = [name for name in ids if name.startswith("evil")]
    ask(live, hostile)
    for view in (top(), command("cache", "inspect", "--live")):
        with Tmux(view, home=home, width=160, height=40) as terminal:
            title = terminal.told("pane_title")
            terminal.wait(lambda text: "evil" in text and "模型" in text)
            assert terminal.told("pane_title") == title != "owned"
            assert "\x1b[31m" not in terminal.colours()
    for args in (("top", "--once"), ("status",), ("cache", "inspect")):
        done = run_omlx(*args, home=home)
        assert done.returncode == 0, done.stderr
        assert "evil" in done.stdout
        assert not any(ord(char) < 32 and char != "\n" for char in done.stdout)


@pytest.mark.parametrize("width", [80, 200])
def test_the_store_live(live: Live, home: Path, width: int) -> None:
    with Tmux(command("cache", "inspect", "--live"), home=home, width=width) as terminal:
        terminal.wait(lambda text: "tier " in text)
        ask(live, client=f"viewer-{width}/1.0", text=LONG + "more " * width)
        newest = asked_by(live, f"viewer-{width}")["prompt_tokens"]
        text = terminal.wait(lambda text: f" {newest:,} " in text)
        assert " stored" in text and " evicted" in text and "to be written" in text
        row = next(line for line in text.split("\n") if f" {newest:,} " in line)
        assert re.match(r"\d\d:\d\d:\d\d ", row)
        assert (f" viewer-{width} " in row) == (width == 200)
        terminal.keys("q")
        wait_until(lambda: not terminal.is_alive())


def test_where_stdout_is_no_terminal(live: Live, home: Path) -> None:
    once = run_omlx("top", "--once", home=home)
    assert once.returncode == 0 and once.stderr == ""
    assert once.stdout.startswith("omlx ") and "\x1b" not in once.stdout
    assert all(cell_len(line) <= 80 for line in once.stdout.splitlines())
    said = json.loads(run_omlx("top", "--once", "--json", home=home).stdout)
    assert said["requests"] == [] and said["status"]["version"]
    assert said["status"]["machine_memory"]["total_bytes"] > 0
    with subprocess.Popen(
        top(), cwd=REPOSITORY, env={**os.environ, "OMLX_HOME": str(home), "FORCE_COLOR": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        num_frames = 0
        for line in process.stdout:
            assert "\x1b" not in line
            num_frames += line.startswith("omlx ")
            if num_frames == 2:
                break
        process.terminate()
        process.stdout.read()
        assert process.wait(60) == 130
        assert process.stderr.read().strip() == ""


def test_no_colour_and_a_terminal_that_can_do_nothing(live: Live, home: Path) -> None:
    with Tmux(top(), home=home, env={"NO_COLOR": "1"}) as terminal:
        terminal.wait(lambda text: "uncached/turn" in text)
        assert "38;5;" not in terminal.colours()
    with Tmux(["env", "TERM=dumb", *top()], home=home) as terminal:
        terminal.wait(lambda text: text.count("uncached/turn") > 0)
        assert terminal.told("alternate_on") == "0"


def test_the_figures_of_status_and_of_the_day(live: Live, home: Path) -> None:
    ask(live, client="codex/1.0")
    wait_until(live.is_written)
    wait_until(lambda: live.status()["last_day"]["written_bytes"] > 0)
    status = live.status()
    written = sum(one["counters"]["bytes_written"] for one in status["models"])
    assert status["last_day"]["written_bytes"] <= written
    wait_until(lambda: live.status()["last_day"]["written_bytes"] == written)
    text = run_omlx("status", home=home).stdout
    assert "  uncached/turn  " in text and "codex " in text and "  disk/day " in text
    lead = json.loads(run_omlx("status", "--json", home=home).stdout)["servers"][0]["lead"]
    assert lead["disk_day"]["written_bytes"] == written
    clients = {one["client"]: one for one in lead["uncached_per_turn"]["clients"]}
    assert clients["codex"]["turns"] == 1
