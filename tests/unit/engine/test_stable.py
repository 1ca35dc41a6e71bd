"""Where later prompts will differ, a model with recurrent layers keeps a snapshot."""

from pathlib import Path

import pytest

from omlx.cache.snapshots import last_within, outdated
from omlx.storage.layout import BlockHash, BlockKey, BlockKind
from tests.fakes.harness import Harness
from tests.unit.engine.test_exact_kinds import B, prompt, start
from tests.unit.engine.test_head import REPLY, STATES, engines, fresh_like, same

__all__ = ["engines"]
STABLE = 3 * B + 11  # where the user's message ends, and a chain of calls begins


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_turn_after_a_chain_hits_there(
    engines: list[Harness], tmp_path: Path, kind: str, is_restarted: bool
) -> None:
    engines.append(h := start(kind, tmp_path, interval=B))
    tokens = prompt(STABLE + 1)
    for step in range(5):
        answer = h.ask(tokens, REPLY, stable=STABLE)
        tokens = [*tokens, *answer.tokens, *prompt(B, seed=20 + step)]
    if is_restarted:
        h.restart()
    later = [*tokens[:STABLE], *prompt(2 * B, seed=7)]
    warm = h.ask(later, REPLY)
    assert warm.cached == STABLE
    engines.append(fresh_like(h, tmp_path / "cold"))
    assert same(warm, engines[-1].ask(later, REPLY, stable=STABLE))


@pytest.mark.parametrize("kind", STATES)
def test_a_prompt_that_is_computed_at_once_leaves_one(
    engines: list[Harness], tmp_path: Path, kind: str
) -> None:
    """No request of the chain was seen before: it comes from elsewhere, or all is lost."""
    engines.append(h := start(kind, tmp_path))
    turn = prompt(STABLE + 4 * B)
    later = [*turn[:STABLE], *prompt(B, seed=7)]
    h.ask(turn, REPLY, stable=STABLE)
    assert h.ask(later, 1).cached == STABLE


def test_without_it_the_turn_is_lost(engines: list[Harness], tmp_path: Path) -> None:
    engines.append(h := start("mamba2", tmp_path))
    turn = prompt(STABLE + 4 * B)
    h.ask(turn, REPLY)
    assert h.ask([*turn[:STABLE], *prompt(B, seed=7)], 1).cached < STABLE


def test_the_last_one_within_what_is_stable_stays() -> None:
    places = [100, 200, 300, 400, 500, 600]
    keys = [
        BlockKey(BlockHash(b"p" * 32), BlockHash(bytes([n]) * 32), 1, BlockKind.STATE)
        for n in range(len(places))
    ]
    snapshots = list(zip(places, keys, strict=True))
    assert last_within(snapshots, 350) == 300 and last_within(snapshots, 99) == 0
    assert [place for place, _ in outdated(snapshots, 0, 350)] == [200, 400]
    assert [place for place, _ in outdated(snapshots, 200, 300)] == [400]
