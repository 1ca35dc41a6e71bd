"""Point 4: the live views on the demo model at work, at two widths, kept in docs/bench/screens.

What they show is compared with what the server says at the same time.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY, Live, chat, command, run_omlx, wait_until
from tests.tmux import Tmux

SCREENS = REPOSITORY / "docs" / "bench" / "screens"
SIZES = {80: 24, 200: 50}
LONG = "".join(f"{number} is followed by {number + 1}. " for number in range(200))
_PREFILL = re.compile(r"claude-cli .* prefill +━+╌* +([\d.,]+k?)/([\d.,]+k?)")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def live(demo: Path, home: Path) -> Iterator[Live]:
    args = ("--model-dir", str(demo.parent), "--cache-write-delay", "200ms")
    with Live(*args, home=home) as server:
        yield server


def keep(name: str, width: int, text: str) -> None:
    """Keep a screen for those who read the docs."""
    lines = [line.rstrip() for line in text.split("\n")]
    assert all(cell_len(line) <= width for line in lines)
    SCREENS.mkdir(parents=True, exist_ok=True)
    (SCREENS / f"{name}-{width}.txt").write_text("\n".join(lines).rstrip() + "\n", "utf-8")


def number(text: str) -> float:
    """What 12.3k or 1,234 stands for."""
    is_thousands = text.endswith("k")
    return float(text.removesuffix("k").replace(",", "")) * (1000 if is_thousands else 1)


def agent(live: Live, model: str, text: str, client: str, *, max_tokens: int) -> Generator[bytes]:
    """A streamed answer to an agent; the request is sent with the first next."""
    connection = live.connection()
    body = {**chat(model, text, max_tokens=max_tokens), "stream": True}
    with closing(connection):
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body),
            {"Content-Type": "application/json", "User-Agent": client},
        )  # fmt: skip
        response = connection.getresponse()
        assert response.status == 200, response.read()
        yield from response


@pytest.mark.parametrize("width", SIZES)
def test_top_at_work(live: Live, demo: Path, home: Path, figure: Figure, width: int) -> None:
    """A prefill whose progress moves, a stream beside it, and what the server says of both."""
    view = command("top", "--interval", "200ms")
    with Tmux(view, home=home, width=width, height=SIZES[width]) as terminal:
        terminal.wait(lambda text: "no requests" in text)
        with closing(
            agent(live, demo.name, "Count to a thousand.", "codex/1.0", max_tokens=2000)
        ) as stream:
            next(stream)
            terminal.wait(lambda text: re.search(r"codex .* decode ", text) is not None)
            # Two widths, two prompts: the second must not hit what the first left.
            prompt = agent(live, demo.name, f"{width} {LONG}", "claude-cli/2.0", max_tokens=4)
            next(prompt)
            seen: list[tuple[float, float]] = []

            def is_moving(text: str) -> bool:
                found = _PREFILL.search(text)
                if found:
                    seen.append((number(found[1]), number(found[2])))
                return len({done for done, _ in seen}) >= 2 and seen[-1][0] > 0.2 * seen[-1][1]

            text = terminal.wait(is_moving, 600)
            keep("top", width, text)
            told = live.get("/admin/api/requests")["requests"]
        list(prompt)
        after = terminal.wait(lambda text: "no requests" in text)
        assert "uncached/turn  claude-cli" in after
    done = [one for one, _ in seen]
    assert done == sorted(done) and all(one <= total for one, total in seen)
    assert {total for _, total in seen} == {seen[0][1]}
    by_client = {one["client"]: one for one in told}
    assert by_client["codex"]["state"] == "decode" and by_client["codex"]["tokens_per_s"] > 0
    total = by_client.get("claude-cli", {}).get("to_prefill_tokens")
    assert total is None or abs(total - seen[0][1]) <= 50
    steps = sorted(set(done))
    figure(
        f"{width} columns: {len(steps)} steps of a prefill seen, "
        f"from {steps[0]:,.0f} to {steps[-1]:,.0f} of {seen[0][1]:,.0f} tokens"
    )


@pytest.mark.parametrize("width", SIZES)
def test_the_store_at_work(live: Live, demo: Path, home: Path, figure: Figure, width: int) -> None:
    """Blocks and hits as they come: a plus behind each, then the same sums as the server has."""
    view = command("cache", "inspect", "--live")
    with Tmux(view, home=home, width=width, height=SIZES[width]) as terminal:
        terminal.wait(lambda text: "tier " in text)
        text = f"Store {width}. {LONG[:4000]}"
        for _ in range(2):
            status, answer = live.post("/v1/chat/completions", chat(demo.name, text))
            assert status == 200, answer
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        shown = terminal.wait(
            lambda text: f" +{cached:,}" in text and re.search(r"written \+\d", text) is not None
        )
        keep("cache-live", width, shown)
        wait_until(live.is_written)
        one = live.model_status()
        moves, sums = one["counters"], one["tokens"]
        terminal.wait(
            lambda text: all(
                part in " ".join(text.split())
                for part in (
                    f"{moves['blocks_stored']:,} stored",
                    f"{moves['blocks_written']:,} written",
                    f" {sums['cached_memory']:,} ",
                )
            )
        )
    figure(f"{width} columns: {cached:,} tokens seen as hits, {moves['blocks_written']} written")


def bench(demo: Path) -> list[str]:
    """A bench that takes seconds."""
    return [
        "bench", "throughput", "--model-dir", str(demo.parent), "--model", demo.name,
        "--tokens", "128,512", "--decode", "8", "--rounds", "2",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def page(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of such a bench."""
    folder = tmp_path_factory.mktemp("page")
    done = run_omlx(*bench(demo), "--html", str(folder / "page.html"), home=folder, timeout_s=600)
    assert done.returncode == 0, done.stderr
    return folder / "page.html"


@pytest.mark.parametrize("width", SIZES)
def test_bench(demo: Path, tmp_path: Path, figure: Figure, width: int) -> None:
    """A bench's progress, and its tables."""
    with Tmux(home=tmp_path, width=width, height=60) as terminal:
        terminal.wait(lambda text: text.startswith("$"))
        terminal.type(f"clear; {shlex.join(command(*bench(demo)))}; echo code=$?")
        terminal.wait(lambda text: re.search(r"[━╸]", text) is not None)
        text = terminal.wait(lambda text: re.search(r"^code=", text, re.M) is not None, 600)
    assert "code=0" in text, text
    shown = text[text.index("omlx bench throughput  ") : text.index("code=0")]
    keep("bench", width, shown)
    assert "prefill" in shown and "decode" in shown and "TTFT" in shown
    figure(f"{width} columns: {shown.count(chr(10))} lines")


@pytest.mark.parametrize(("name", "number", "back"), [
    ("dark", 0, (0x15, 0x18, 0x1C)), ("light", 1, (0xFF, 0xFF, 0xFF)),
])  # fmt: skip
def test_the_page_in_chromium(
    page: Path, tmp_path: Path, figure: Figure, name: str, number: int, back: tuple[int, ...]
) -> None:
    """As a browser draws it, on a dark and on a light desktop."""
    picture = SCREENS / f"bench-page-{name}.png"
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium is not None, "Chromium is needed: apt-get install chromium"
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1600",
        f"--blink-settings=preferredColorScheme={number}", "--enable-logging=stderr",
    )  # fmt: skip
    shot = _run(chromium, *options, f"--screenshot={picture}", page.as_uri())
    assert "CONSOLE" not in shot.stderr, shot.stderr
    data = picture.read_bytes()
    assert _corner(data) == back
    blank = tmp_path / "blank.html"
    blank.write_text("<body style='background: #eee'>")
    _run(chromium, *options, f"--screenshot={tmp_path / 'blank.png'}", blank.as_uri())
    assert len(data) > 4 * (tmp_path / "blank.png").stat().st_size, "hardly anything is drawn"
    dom = _run(chromium, *options, "--dump-dom", page.as_uri()).stdout
    assert "<h1>omlx bench throughput" in dom and "<svg" in dom and "<script" not in dom
    figure(f"{name}: {len(data):,} bytes of picture, {dom.count('<svg')} charts")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """The browser, without the library that is put before others for a model's sake."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done


def _corner(png: bytes) -> tuple[int, ...]:
    """The colour of the first pixel, which no filter changes."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    packed, at = b"", 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + size]
        at += size + 12
    return tuple(zlib.decompressobj().decompress(packed, 4)[1:4])
