"""Point 7: a client that gives up at 30 % of a long prefill and repeats the same body: each attempt
begins where the one before stopped, and the last one answers as if nothing had happened."""

from pathlib import Path
from typing import Any

import pytest

from omlx.storage.entry import JournalEntry
from omlx.storage.history import History
from tests.acceptance.cache.test_06_in_flight import BLOCK, TIERS
from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import words
from tests.acceptance.serve.test_06_disconnect import send, stages
from tests.live import Live, chat, wait_until

NUM_ATTEMPTS = 2  # that give up; the third has the rest to do
PATIENCE = 0.3
MAX_AHEAD = 2 * BLOCK  # of a prefill, before its client hears of it


@pytest.fixture(scope="module")
def body(demo: Path) -> dict[str, Any]:
    return chat(demo.name, words(2930, 7), max_tokens=12)


@pytest.fixture(scope="module")
def undisturbed(demo: Path, tmp_path_factory: pytest.TempPathFactory, body: dict[str, Any]) -> Any:
    """The answer of a server without a cache."""
    home = tmp_path_factory.mktemp("undisturbed")
    with Live("--model-dir", str(demo.parent), "--no-cache", home=home) as live:
        status, answer = live.post("/v1/chat/completions", body)
    assert status == 200
    return answer


def num_stored(live: Live) -> int:
    return live.model_status()["counters"]["blocks_stored"]


def give_up(live: Live, body: dict[str, Any], num_blocks: int) -> JournalEntry:
    """Send a request, close the socket after so many more blocks; what the journal keeps of it."""
    num_before = num_stored(live)
    num_over = len(live.status()["recent"])
    sock = send(live, body)
    wait_until(lambda: num_stored(live) >= num_before + num_blocks, timeout_s=300, poll_s=0.02)
    sock.close()
    wait_until(lambda: stages(live) == (0, 0, 0))
    wait_until(lambda: len(live.status()["recent"]) > num_over)
    entry = History(live.home / "state" / "journal.sqlite3").last()
    assert entry is not None and entry.outcome == "aborted"
    return entry


@pytest.mark.parametrize("tiers", TIERS)
def test_attempts(
    demo: Path,
    tmp_path: Path,
    figure: Figure,
    body: dict[str, Any],
    undisturbed: Any,
    tiers: str,
) -> None:
    size = undisturbed["usage"]["prompt_tokens"]
    num_blocks = round(PATIENCE * size / BLOCK)
    with Live("--model-dir", str(demo.parent), *TIERS[tiers], home=tmp_path) as live:
        attempts = [give_up(live, body, num_blocks) for _ in range(NUM_ATTEMPTS)]
        status, answer = live.post("/v1/chat/completions", body)
        assert status == 200
    usage = answer["usage"]["prompt_tokens_details"]
    began = [*(entry.cached for entry in attempts), usage["cached_tokens"]]
    ended = [entry.computed for entry in attempts]
    assert began[0] == 0
    for start, stop in zip(began[1:], ended, strict=True):
        assert stop <= start <= stop + MAX_AHEAD and start % BLOCK == 0, (began, ended)
    assert began[-1] < size - 1
    for start, stop in zip(began, ended, strict=False):
        assert stop - start >= PATIENCE * size - BLOCK
    assert answer["choices"] == undisturbed["choices"]
    figure(
        f"{tiers}: {size} tokens; attempts went "
        + ", ".join(f"{a} to {b}" for a, b in zip(began, [*ended, size], strict=True))
        + "; the answer is that of an undisturbed run"
    )
