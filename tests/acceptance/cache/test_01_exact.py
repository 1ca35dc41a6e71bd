"""Point 1: what comes back from memory, from disk, after a restart and after eviction gives the
logits of a cache that was never broken, bit for bit: ten architectures, two types, lengths around
the edges of blocks, windows, chunks and snapshots. And wrong state is noticed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests import exact, spoil
from tests.acceptance.conftest import Figure
from tests.exact import ARCHITECTURES, BLOCK, CHUNK, EXPERTS, INTERVAL, NOTHING, REPLY, Case
from tests.fakes.harness import Harness

DTYPES = {"fp32": mx.float32, "bf16": mx.bfloat16}
CONTROL = Case(INTERVAL + 16, is_repeat=True)  # a snapshot lies 16 tokens before its end
LAST = INTERVAL // BLOCK - 1  # its last full block
MIDDLE = CHUNK // BLOCK  # a block that begins with a chunk


def build(name: str, dtype: str) -> Any:
    """The CPU multiplies gathered experts in float32 or packed; so in bfloat16 they are packed."""
    packed = dtype == "bf16" and name in EXPERTS
    return exact.build(name, DTYPES[dtype], experts_bits=8 if packed else None)


@pytest.mark.parametrize("name", EXPERTS)
def test_plain_experts_in_bf16_do_not_run_on_a_cpu(name: str) -> None:
    """Why these four have packed ones; were it to run, they should not."""
    if mx.default_device().type is mx.DeviceType.cpu:
        with pytest.raises(RuntimeError, match=r"GatherMM.*only supports float32"):
            exact.build(name, mx.bfloat16)
    assert str(build(name, "bf16")(mx.array([[3]])).dtype) == "mlx.core.bfloat16"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_comes_back_is_what_was_never_away(name: str, tmp_path: Path, figure: Figure) -> None:
    todo = exact.cases(exact.around_edges())
    total, wrong, num_returns = NOTHING, [], 0
    for dtype in DTYPES:
        model = build(name, dtype)
        expected = {case: exact.live(model, case) for case in todo}
        for way in exact.WAYS:
            for back in exact.come_back(way, model, tmp_path / dtype / way, todo):
                live = expected[back.case]
                found = exact.difference(back.first.logits, live.first)
                found += exact.difference(back.second.logits, live.second)
                total += found
                num_returns += 1
                if not found.is_none or not came_that_way(back, way):
                    wrong.append((dtype, way, back.case, found, back.second.stats))
    figure(
        f"{name}: {num_returns} returns, {total.num_rows:,} rows of logits, "
        f"{total.num_values} values differ"
    )
    assert not wrong, wrong
    assert num_returns == len(DTYPES) * len(exact.WAYS) * len(todo)
    assert total.num_rows == 2 * (REPLY + 1) * num_returns


def came_that_way(back: exact.Return, way: str) -> bool:
    """Whether all of it was found, and where it should have been."""
    assert back.second.stats is not None
    found = back.second.stats.cached_memory, back.second.stats.cached_disk
    num_tokens = back.case.num_restored
    return found == ((num_tokens, 0) if way == "memory" else (0, num_tokens))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_wrong_state_in_memory_is_noticed(name: str, tmp_path: Path, figure: Figure) -> None:
    """Blocks and snapshots, by the comparison of the test above."""
    shown: list[str] = []
    for dtype in DTYPES:
        model = build(name, dtype)
        expected = exact.live(model, CONTROL).second
        engine = exact.start(model, tmp_path / dtype)
        prompt = CONTROL.prompt
        engine.ask(prompt, REPLY)
        found = {
            kind: exact.difference(engine.ask(prompt, REPLY).logits, expected)
            for kind in spoiled(engine, prompt)
        }
        clean = exact.difference(engine.ask(prompt, REPLY).logits, expected)
        engine.stop()
        assert clean.is_none and found, "what was wrong has been put right"
        assert not [kind for kind, one in found.items() if one.is_none], found
        shown.append(
            f"{dtype} " + ", ".join(f"{kind} {one.largest:.1g}" for kind, one in found.items())
        )
    figure(f"{name}, largest difference of logits: " + "; ".join(shown))


def spoiled(engine: Harness, prompt: list[int]) -> Iterator[str]:
    """Spoil what is in memory in one way after the other, and put it right after each."""
    other = exact.random_tokens(len(prompt), 2)
    engine.ask(other, REPLY)
    for what, find, kinds, last in (
        ("blocks", spoil.blocks, spoil.OF_BLOCKS, LAST),
        ("snapshots", spoil.snapshots, spoil.OF_SNAPSHOTS, 1),
    ):
        entries, others = find(engine, prompt), find(engine, other)
        right = [(entry, entry.payload) for entry in (*entries, *others)]
        for kind, make_wrong in kinds.items() if entries else ():
            make_wrong(entries, last, others)
            yield f"{kind} of {what}"
            for entry, payload in right:
                entry.payload = payload


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_file_is_a_miss(name: str, tmp_path: Path, figure: Figure) -> None:
    """What is good before it is used, and the logits are right."""
    num_wrong = 0
    for dtype in DTYPES:
        model = build(name, dtype)
        expected = exact.live(model, CONTROL).second
        for what in ("blocks", "snapshots"):
            for kind in ("swap", "bit", "drop"):
                folder = tmp_path / dtype / what / kind
                engine = exact.start(model, folder)
                engine.ask(CONTROL.prompt, REPLY)
                files = spoil.Files.of(engine, folder, CONTROL.prompt)
                assert engine.stop() == 0
                if not spoil_files(files, what, kind):
                    continue
                engine.engine = engine._start()
                again = engine.ask(CONTROL.prompt, REPLY)
                disk = exact.prefix_of(engine)._tiers.disk
                assert disk is not None
                num_bad = sum(disk.counters().bad.values())
                engine.stop()
                case = dtype, what, kind, again.cached, num_bad
                assert again.cached == num_left(files, what, kind), case
                assert num_bad == 0 if kind == "drop" else num_bad > 0, case
                assert exact.difference(again.logits, expected).is_none, case
                num_wrong += 1
    figure(f"{name}: {num_wrong} times wrong files, a miss each time, no value differs")


def spoil_files(files: spoil.Files, what: str, kind: str) -> bool:
    """Make files wrong that a look-up needs; False where the model has none of the sort."""
    keys = files.blocks if what == "blocks" else files.snapshots
    if not keys:
        return False
    # A block in the middle and the next one; the snapshot of the prompt and the one before.
    idx, beside = (MIDDLE, MIDDLE + 1) if what == "blocks" else (-2, -3)
    if kind == "swap":
        spoil.swap_files(files.path(keys[idx]), files.path(keys[beside]))
    elif kind == "bit":
        spoil.flip_bit(files.path(keys[idx]))
    else:
        files.path(keys[idx]).unlink()
    return True


def num_left(files: spoil.Files, what: str, kind: str) -> int:
    """How many tokens can be restored after that."""
    if what == "snapshots":
        return 0 if kind == "swap" else INTERVAL
    return 0 if files.snapshots else MIDDLE * BLOCK
