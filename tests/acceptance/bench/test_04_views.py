"""Point 4: the live views on the demo model at work, at two widths, kept in docs/bench/screens.

What they show is compared with what the server says at the same time.
"""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY, Live, chat, command, wait_until
from tests.tmux import Tmux

SCREENS = REPOSITORY / "docs" / "bench" / "screens"
SIZES = {80: 24, 200: 50}
LONG = "".join(f"{number} is followed by {number + 1}. " for number in range(600))
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


def agent(live: Live, model: str, text: str, client: str, *, max_tokens: int) -> Iterator[object]:
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
        stream = agent(live, demo.name, "Count to a thousand.", "codex/1.0", max_tokens=2000)
        next(iter(stream))
        terminal.wait(lambda text: re.search(r"codex .* decode ", text) is not None)
        # Two widths, two prompts: the second must not hit what the first left.
        prompt = agent(live, demo.name, f"{width} {LONG}", "claude-cli/2.0", max_tokens=4)
        next(iter(prompt))
        seen: list[tuple[float, float]] = []

        def is_moving(text: str) -> bool:
            found = _PREFILL.search(text)
            if found:
                seen.append((number(found[1]), number(found[2])))
            return len({done for done, _ in seen}) >= 2

        text = terminal.wait(is_moving)
        keep("top", width, text)
        told = live.get("/admin/api/requests")["requests"]
        list(prompt)
        after = terminal.wait(lambda text: "claude-cli" not in text.split(" request")[1])
        assert "uncached/turn  claude-cli" in after
    done = [one for one, _ in seen]
    assert done == sorted(done) and all(one <= total for one, total in seen)
    assert {total for _, total in seen} == {seen[0][1]}
    by_client = {one["client"]: one for one in told}
    assert by_client["codex"]["state"] == "decode" and by_client["codex"]["tokens_per_s"] > 0
    total = by_client.get("claude-cli", {}).get("to_prefill_tokens")
    assert total is None or abs(total - seen[0][1]) <= 50
    figure(f"{width} columns: prefill seen at {', '.join(f'{one:,.0f}' for one in done)}")


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
