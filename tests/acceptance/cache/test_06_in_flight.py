"""Point 6: four requests with one 2,000-token prefix, sent together, compute the prefix once; with
both tiers, with the disk alone, with memory alone. So do three of them when the first gives up."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from omlx.cache.hashing import common_prefix, token_array
from omlx.models.text import TextModel
from omlx.storage.history import History
from tests.acceptance.conftest import Figure
from tests.acceptance.serve.test_03_restart import words
from tests.acceptance.serve.test_06_disconnect import send, stages
from tests.live import Live, chat, wait_until

BLOCK = 256
ENDS = ["river", "stone " * 5, "tree " * 40, "yellow " * 300]
TIERS = {
    "both tiers": (),
    "memory tier 0": ("--cache-memory-size", "0"),
    "disk tier 0": ("--cache-max-size", "0"),
}


@dataclass(frozen=True)
class Family:
    """Bodies whose prompts have the first `shared` tokens in common, and the prompts' sizes."""

    bodies: Sequence[dict[str, Any]]
    sizes: Sequence[int]
    shared: int


@pytest.fixture(scope="module")
def family(demo: Path) -> Family:
    text = TextModel.load(demo)
    bodies = [chat(demo.name, f"{words(1985, 6)} {end}", max_tokens=2) for end in ENDS]
    prompts = [token_array(text.encode(text.render(body["messages"]))) for body in bodies]
    shared = {common_prefix(a, b) for a, b in combinations(prompts, 2)}
    assert len(shared) == 1 and 2000 <= min(shared) < 2100 and min(shared) % BLOCK
    return Family(bodies, [len(p) for p in prompts], min(shared))


def post_all(live: Live, bodies: Sequence[dict[str, Any]]) -> Callable[[], list[dict[str, int]]]:
    """Send all at the same time; what comes back waits for the answers and gives their usage."""
    answers: list[tuple[int, Any]] = [(0, None)] * len(bodies)
    start = threading.Barrier(len(bodies))

    def post(idx: int) -> None:
        start.wait(30)
        answers[idx] = live.post("/v1/chat/completions", bodies[idx])

    threads = [threading.Thread(target=post, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()

    def usages() -> list[dict[str, int]]:
        for thread in threads:
            thread.join()
        assert [status for status, _ in answers] == [200] * len(bodies), answers
        return [
            {
                "prompt": answer["usage"]["prompt_tokens"],
                "cached": answer["usage"]["prompt_tokens_details"]["cached_tokens"],
            }
            for _, answer in answers
        ]

    return usages


@pytest.mark.parametrize("tiers", TIERS)
def test_together(demo: Path, tmp_path: Path, figure: Figure, family: Family, tiers: str) -> None:
    with Live("--model-dir", str(demo.parent), *TIERS[tiers], home=tmp_path) as live:
        answered = post_all(live, family.bodies)
        wait_until(lambda: stages(live) == (3, 1, 0))
        usages = answered()
        counters = live.model_status()["counters"]
    assert [usage["prompt"] for usage in usages] == family.sizes
    assert sorted(usage["cached"] for usage in usages) == [0] + [family.shared] * 3
    found = counters["cached_memory_tokens"] + counters["cached_disk_tokens"]
    computed = counters["prompt_tokens"] - found
    assert computed == family.shared + sum(size - family.shared for size in family.sizes)
    assert (counters["cached_disk_tokens"] > 0) == (tiers == "memory tier 0")
    ends = " + ".join(str(size - family.shared) for size in family.sizes)
    figure(
        f"{tiers}: {sum(family.sizes)} prompt tokens in 4 requests, {computed} computed = "
        f"{family.shared} + {ends}"
    )


@pytest.mark.parametrize("tiers", TIERS)
def test_the_first_gives_up(
    demo: Path, tmp_path: Path, figure: Figure, family: Family, tiers: str
) -> None:
    """The work goes to the next one, which begins where the first one stopped."""
    with Live("--model-dir", str(demo.parent), *TIERS[tiers], home=tmp_path) as live:
        first = send(live, family.bodies[0])
        wait_until(lambda: stages(live) == (0, 1, 0))
        answered = post_all(live, family.bodies[1:])
        wait_until(lambda: stages(live) == (3, 1, 0))
        wait_until(lambda: live.model_status()["counters"]["blocks_stored"] >= 2, timeout_s=120)
        first.close()
        usages = answered()
        assert live.status()["requests"]["aborted"] == 1
        request_id = live.status()["recent"][-1]["id"]
        gone = History(tmp_path / "state" / "journal.sqlite3").find(request_id)
    assert gone is not None and gone.outcome == "aborted" and gone.cached == 0
    assert 2 * BLOCK <= gone.computed < family.shared
    cached = sorted(usage["cached"] for usage in usages)
    assert cached[0] >= gone.computed, "what it had computed"
    assert cached == [cached[0], family.shared, family.shared]
    figure(
        f"{tiers}: the first gave up after {gone.computed} tokens; the next began at {cached[0]}, "
        f"the others at {family.shared}"
    )
