"""P22: those who do not share a salt find nothing of each other's, and learn nothing of it."""

import hashlib
from dataclasses import replace
from itertools import combinations
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from omlx.cache.block import Chain
from omlx.cache.hashing import (
    chain_hashes,
    compute_block_hash,
    token_array,
    tokens_of_bytes,
)
from omlx.cache.leaves import StateLeaf
from omlx.cache.lookup import Hit
from omlx.cache.salting import salted_root
from omlx.cache.stored import StoredSequences
from omlx.storage.layout import BlockHash
from tests.fakes import state
from tests.fakes.blocks import DIRECTORY, ROOT
from tests.fakes.cache import BLOCK, Rig

LONG = list(range(10, 10 + 5 * BLOCK + 2))
SALTS = ("", "a", "b", "ab", "a\0", "\ud800")


@pytest.mark.parametrize(("mine", "other"), [*combinations(SALTS, 2)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_another_salt_finds_nothing(mine: str, other: str, is_restarted: bool) -> None:
    """P22"""
    rig = Rig()
    rig.compute(LONG, salt=mine)
    if is_restarted:
        rig.restart()
    hit = rig.look_up([*LONG, 99], other)
    assert hit.num_tokens == 0
    assert hit.trail is not None and (hit.trail.shared, hit.trail.nearest) == (0, None)
    assert rig.look_up([*LONG[:1], 99], other).num_tokens == 0
    hit = rig.look_up([*LONG, 99], mine)
    assert hit.num_tokens == len(LONG)
    assert hit.trail is not None and hit.trail.root == ROOT, "where the files are"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_both_are_kept_beside_each_other(is_restarted: bool) -> None:
    """P22: the same salt hits, in both tiers."""
    rig = Rig()
    for salt in ("a", "b", "a"):
        found = rig.compute(LONG, salt=salt).num_tokens
    assert found == len(LONG) - 1
    if is_restarted:
        rig.restart()
        assert len(rig.on_disk()) == 2 * 6
    for salt in ("a", "b"):
        assert rig.look_up([*LONG, 99], salt).num_tokens == len(LONG)
        assert rig.look_up([*LONG[:7], 99], salt).num_tokens == 7
    assert rig.look_up([*LONG, 99]).num_tokens == 0


def test_what_is_dropped_is_only_the_own() -> None:
    rig = Rig()
    chains = [rig.compute(LONG, salt=salt).chain for salt in ("a", "b", "")]
    rig.prefix.drop(chains[0])
    rig.settle()
    found = [rig.look_up([*LONG, 99], salt).num_tokens for salt in ("a", "b", "")]
    assert found == [0, len(LONG), len(LONG)]


def test_a_file_does_not_serve_another_salt() -> None:
    """Even where somebody has put it under the other's name, its header tells."""
    rig = Rig()
    chain = rig.compute(LONG, salt="a").chain
    rig.restart()
    path = rig.file_of(replace(chain, salt="a"), 0)
    other = rig.twin()
    moved = other.compute(LONG, salt="b").chain
    other.restart()
    target = rig.file_of(moved, 0)
    rig.fs.rename(path, target)
    rig.start()
    assert rig.look_up([*LONG, 99], "b").num_tokens == 0


def test_the_first_names_differ_and_so_do_all_after_them() -> None:
    tokens = token_array(LONG)
    chains = [chain_hashes(salted_root(ROOT, salt), tokens, BLOCK) for salt in SALTS]
    names = [name for chain in chains for name in chain]
    assert len(set(names)) == len(names)
    assert chains[0] == chain_hashes(ROOT, tokens, BLOCK), "no salt is as it was"


def test_a_salt_is_no_block_and_no_token() -> None:
    """P11: the field of the salt has a tag of its own."""
    salted = salted_root(ROOT, "1")
    parent = BlockHash(ROOT)
    blocks = [compute_block_hash(ROOT, parent, tokens) for tokens in ([], [1], [49])]
    keyed = compute_block_hash(ROOT, parent, [], [("salt", b"1")])
    assert salted not in (*blocks, keyed, ROOT)
    assert salted_root(ROOT, "11") != salted_root(salted_root(ROOT, "1"), "1")


def test_stored_sequences_are_those_of_a_salt() -> None:
    rig = Rig()
    rig.compute(LONG, salt="a")
    rig.restart()
    tokens = token_array([*LONG, 99])
    found = {
        salt: StoredSequences(DIRECTORY, ROOT, rig.fs, block_size=BLOCK, salt=salt)
        for salt in ("", "a", "b")
    }
    assert {salt: one.match(tokens).num_tokens for salt, one in found.items()} == {
        "": 0, "a": len(LONG), "b": 0,
    }  # fmt: skip
    own = found["a"]
    assert own.tokens_of(own.names(tokens)).tolist() == LONG
    assert tokens_of_bytes(b"").tolist() == []


def test_the_name_of_a_salted_root_is_as_the_format_says() -> None:
    """P11, P22: tags and lengths before each part, so that no two lists of parts are the same."""
    data = b"".join(
        tag + len(value).to_bytes(8, "little") + value
        for tag, value in ((b"P", ROOT), (b"K", b"salt"), (b"k", b"\xc3\xa4"))
    )
    assert salted_root(ROOT, "ä") == hashlib.sha256(data).digest()


def _row(tokens: list[int]) -> list[Any]:
    recurrent = ArraysCache.from_state(([mx.full((1, 2), float(len(tokens)))], None, None))
    return [*state.caches(tokens, 6), recurrent]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_snapshots_of_recurrent_layers_are_kept_apart_too(is_restarted: bool) -> None:
    """P22"""
    rig = Rig(window=6, states=[StateLeaf((2,), 0, 1, (2,), "F32")])
    chain = Chain(token_array(LONG), salt="a")
    rig.prefix.store(chain, _row(LONG), 20)
    rig.prefix.store_tail(chain, _row(LONG), 2)
    for position in (3, 12, 22):  # within the first block, at the end of one, at the end of all
        rig.prefix.states.store(chain, _row(LONG[:position]), position)
    if is_restarted:
        rig.restart()

    def found(tokens: list[int], salt: str) -> int:
        hits: list[Hit] = []
        rig.prefix.look_up(token_array([*tokens, 99]), hits.append, salt=salt)
        rig.settle()
        trail = hits[0].trail
        assert trail is not None and (trail.shared > 0) == (salt == "a")
        return hits[0].num_tokens

    for salt in ("", "b"):
        assert [found(LONG[:n], salt) for n in (3, 12, 22)] == [0, 0, 0]
    assert [found(LONG[:n], "a") for n in (3, 12, 22)] == [3, 12, 22]
