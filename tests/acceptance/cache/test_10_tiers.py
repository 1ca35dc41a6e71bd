"""Point 10: points 1 and 4 without a memory tier and without a disk tier; point 6 has both in its
own file."""

from pathlib import Path

import pytest

from tests import exact
from tests.acceptance.cache.test_01_exact import DTYPES, build
from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench
from tests.exact import ARCHITECTURES, BLOCK, CHUNK, INTERVAL, NOTHING, WINDOW

LENGTHS = [1, BLOCK - 1, BLOCK, WINDOW + 1, CHUNK + 1, INTERVAL, 2 * INTERVAL + BLOCK + 7]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_a_memory_tier(name: str, tmp_path: Path, figure: Figure) -> None:
    """All of it comes from the queue of writes or from files, to the same engine and to others."""
    todo = exact.cases(LENGTHS)
    total, wrong, num_returns = NOTHING, [], 0
    for dtype in DTYPES:
        model = build(name, dtype)
        expected = {case: exact.live(model, case) for case in todo}
        for way in ("queue", "settled", "disk", "restart"):
            folder = tmp_path / dtype / way
            for back in exact.come_back(way, model, folder, todo, memory_bytes=0):
                found = exact.difference(back.second.logits, expected[back.case].second)
                stats = back.second.stats
                assert stats is not None
                total += found
                num_returns += 1
                is_all = (stats.cached_memory, stats.cached_disk) == (0, back.case.num_restored)
                if not (found.is_none and is_all):
                    wrong.append((dtype, way, back.case, found, stats))
    figure(
        f"{name}, memory tier 0: {num_returns} returns, {total.num_rows:,} rows of logits, "
        f"{total.num_values} values differ"
    )
    assert not wrong, wrong
    assert num_returns == len(DTYPES) * 4 * len(todo)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_a_disk_tier(name: str, tmp_path: Path, figure: Figure) -> None:
    """All of it comes from memory; what was evicted or was there before a restart is computed.

    Chunks of one block, so that what is computed after a shorter hit is the same pieces.
    """
    todo = exact.cases(LENGTHS)
    repeats = [case for case in todo if case.is_repeat]
    total, wrong = NOTHING, []
    founds = dict.fromkeys(("memory", "eviction", "restart"), 0)
    for dtype in DTYPES:
        model = build(name, dtype)
        expected = {case: exact.live(model, case, chunk=BLOCK) for case in todo}
        for way in founds:
            config = {"disk_bytes": 0, "prefill_chunk": BLOCK}
            asked = todo if way == "memory" else repeats
            for back in exact.come_back(way, model, tmp_path / dtype / way, asked, **config):
                found = exact.difference(back.second.logits, expected[back.case].second)
                stats = back.second.stats
                assert stats is not None
                total += found
                founds[way] += stats.cached_memory
                is_all = stats.cached_memory == back.case.num_restored
                is_right = (
                    is_all if way == "memory" else way == "eviction" or not back.second.cached
                )
                if not (found.is_none and is_right) or stats.cached_disk:
                    wrong.append((dtype, way, back.case, found, stats))
    wanted = len(DTYPES) * sum(case.num_restored for case in repeats)
    figure(
        f"{name}, disk tier 0: {total.num_rows:,} rows of logits, {total.num_values} values "
        f"differ; after eviction {founds['eviction']:,} of {wanted:,} tokens were found"
    )
    assert not wrong, wrong
    assert founds["eviction"] < wanted
    assert not list(tmp_path.rglob("*.safetensors"))


def test_restores_without_a_memory_tier(figure: Figure) -> None:
    """Point 4, smaller."""
    result = run_bench("store.py", "--memory", "0", "--index", "1000", "--bytes", "500000000")
    for kind in result["restore"]:
        ratio = kind["restore_vs_raw"]
        figure(
            f"memory tier 0, {kind['block']} blocks: restore {kind['restore_gb_per_s']} GB/s, raw "
            f"preads {kind['raw_gb_per_s']}, ratio {ratio['ratio']} [{ratio['low95']}, "
            f"{ratio['high95']}]"
        )
        assert ratio["high95"] >= 0.7, kind
