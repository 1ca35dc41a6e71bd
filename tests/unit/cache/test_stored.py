"""Sequences put together from the files of a store."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.cache.hashing import (
    chain_hashes,
    compute_block_hash,
    compute_root_hash,
    token_array,
)
from omlx.cache.stored import Match, Names, StoredSequences, roots_of
from omlx.storage.fs import RealFileSystem
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, root_name
from omlx.storage.record import SectionSpec
from tests.fakes.blocks import DIRECTORY, ROOT
from tests.fakes.cache import BLOCK, Rig

LONG = list(range(1, 3 * BLOCK + 3))


@pytest.fixture
def rig() -> Rig:
    """A store that holds LONG: three blocks and a tail of two tokens."""
    rig = Rig()
    rig.compute(LONG)
    rig.pass_delay()
    return rig


def sequences(rig: Rig) -> StoredSequences:
    return StoredSequences(DIRECTORY, ROOT, rig.fs, block_size=BLOCK)


def keep(rig: Rig, tokens: list[int]) -> None:
    rig.compute(tokens)
    rig.pass_delay()


def test_names_are_those_that_the_cache_may_serve(rig: Rig) -> None:
    array = token_array(LONG[: 3 * BLOCK + 1])
    names = sequences(rig).names(array)
    assert names.blocks == chain_hashes(ROOT, array, BLOCK)
    assert (names.rest, names.rest_count) == (None, 0)
    shorter = sequences(rig).names(token_array(LONG[: 3 * BLOCK]))
    assert (len(shorter.blocks), shorter.rest_count) == (2, BLOCK - 1)
    assert sequences(rig).names(token_array([])) == Names([], None, 0)


def test_a_sequence_is_read_back_to_its_last_but_one_token(rig: Rig) -> None:
    for num in (1, 2, BLOCK, BLOCK + 1, 2 * BLOCK + 3, len(LONG)):
        names = sequences(rig).names(token_array(LONG[:num]))
        assert sequences(rig).tokens_of(names).tolist() == LONG[: num - 1]


def test_it_is_read_as_far_as_it_is_there(rig: Rig) -> None:
    names = sequences(rig).names(token_array(LONG))
    hit = rig.look_up(LONG)
    rig.fs.unlink(rig.file_of(hit.chain, 1))
    assert sequences(rig).tokens_of(names).tolist() == LONG[:BLOCK]


def test_what_is_stored_of_a_prompt(rig: Rig) -> None:
    for prompt, num in (
        (LONG, len(LONG) - 1),
        ([*LONG, 90, 91], len(LONG)),
        (LONG[: BLOCK + 2], BLOCK + 1),
        ([*LONG[: BLOCK + 1], 90, 91], BLOCK + 1),
        ([90, 91], 0),
    ):
        assert sequences(rig).match(token_array(prompt)).num_tokens == num


def test_a_prompt_that_only_goes_on_has_no_neighbour(rig: Rig) -> None:
    for prompt in (LONG, [*LONG, 90, 91], LONG[: BLOCK + 2], LONG[:BLOCK]):
        assert sequences(rig).match(token_array(prompt)).neighbour is None


def test_a_prompt_that_is_stored_itself_has_no_neighbour(rig: Rig) -> None:
    prompt = [*LONG[: BLOCK + 1], 90, 91, 92, 93, 94]
    keep(rig, prompt)
    for longer in (prompt, [*prompt, 95, 96]):
        found = sequences(rig).match(token_array(longer))
        assert found.num_tokens == min(len(prompt), len(longer) - 1)
        assert found.neighbour is None


@pytest.mark.parametrize("at", [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 1])
def test_the_neighbour_is_the_whole_sequence_that_goes_on(rig: Rig, at: int) -> None:
    found = sequences(rig).match(token_array([*LONG[:at], 90, 91, 92]))
    assert found.num_tokens == at
    assert found.neighbour is not None
    assert found.neighbour.tokens.tolist() == LONG
    assert len(found.neighbour.parent) == at // BLOCK


def test_the_prompt_itself_is_no_neighbour(rig: Rig) -> None:
    prompt = [*LONG[: BLOCK + 1], 90, 91, 92, 93, 94]
    keep(rig, prompt)
    own = sequences(rig).names(token_array(prompt))
    tokens = token_array(prompt)
    found = sequences(rig).neighbour(tokens, own.blocks[:1], own=own)
    assert found is not None and found.tokens.tolist() == LONG


def test_the_nearest_by_name_comes_before_one_that_shares_more(rig: Rig) -> None:
    prompt = [*LONG[: BLOCK + 1], 90, 91, 92, 93]
    keep(rig, [*LONG[: BLOCK + 1], 90, 95])
    tokens = token_array(prompt)
    own = sequences(rig).names(tokens)
    nearest = chain_hashes(ROOT, token_array(LONG), BLOCK)[1]
    by_name = sequences(rig).neighbour(tokens, own.blocks[:1], own=own, nearest=nearest)
    by_length = sequences(rig).neighbour(tokens, own.blocks[:1], own=own)
    assert by_name is not None and by_name.tokens.tolist() == LONG
    assert by_length is not None and by_length.tokens.tolist() == [*LONG[: BLOCK + 1], 90, 95]


def test_the_rest_is_known_by_its_name(rig: Rig) -> None:
    """A tail that has grown by the reply still begins with the prompt's rest."""
    names = sequences(rig).names(token_array(LONG[: 3 * BLOCK + 2]))
    assert names.rest_count == 1
    assert sequences(rig).tokens_of(names).tolist() == LONG[: 3 * BLOCK + 1]
    other = replace(names, rest=names.blocks[0])
    assert sequences(rig).tokens_of(other).tolist() == LONG[: 3 * BLOCK]


# ---- models with recurrent layers


def keep_state(rig: Rig, tokens: list[int]) -> None:
    """A snapshot after `tokens`, as a running row leaves it."""
    array = token_array(tokens)
    index = (len(tokens) - 1) // BLOCK
    names = chain_hashes(ROOT, array, BLOCK)
    rest = array[index * BLOCK :]
    parent = names[index - 1] if index else None
    name = compute_block_hash(ROOT, parent, rest)
    key = BlockKey(parent or BlockHash(ROOT), name, len(rest), BlockKind.STATE)
    spec = SectionSpec("state.0", "F32", (1, 3))
    assert rig.disk is not None
    rig.disk.write(key, rest.tobytes(), [(spec, memoryview(bytearray(12)))], lambda _: None)
    rig.settle()


def match(rig: Rig, tokens: list[int], sections: str) -> Match:
    known = StoredSequences(DIRECTORY, ROOT, rig.fs, block_size=BLOCK, sections=sections)
    return known.match(token_array(tokens))


def test_a_hybrid_model_goes_on_from_the_deepest_snapshot_that_is_covered(rig: Rig) -> None:
    sections = "kv.0=F32[1]:0k;state.0=F32[1]:1s0"
    assert match(rig, [*LONG, 90], sections).num_tokens == 0
    for num in (BLOCK + 1, 2 * BLOCK, len(LONG)):
        keep_state(rig, LONG[:num])
    keep_state(rig, [*LONG[:3], 70])
    for prompt, num_stored, num_tokens in (
        ([*LONG, 90, 91], len(LONG), len(LONG)),
        (LONG, len(LONG) - 1, 2 * BLOCK),
        ([*LONG[: 2 * BLOCK - 1], 90, 91], 2 * BLOCK - 1, BLOCK + 1),
        ([*LONG[: BLOCK + 1], 90], BLOCK + 1, BLOCK + 1),
        ([*LONG[:BLOCK], 90, 91], BLOCK, 0),
    ):
        found = match(rig, prompt, sections)
        assert (found.num_stored, found.num_tokens) == (num_stored, num_tokens)
    forked = match(rig, [*LONG[: BLOCK + 1], 90, 91], sections)
    assert forked.neighbour is not None, "a snapshot is no end of what is stored"
    assert match(rig, LONG, "kv.0=F32[1]:0k").num_tokens == len(LONG) - 1


def test_a_model_without_attention_has_snapshots_only() -> None:
    rig = Rig()
    for num in (BLOCK + 1, len(LONG)):
        keep_state(rig, LONG[:num])
    for prompt, num in (([*LONG, 90], len(LONG)), (LONG, BLOCK + 1), (LONG[: BLOCK + 1], 0)):
        assert match(rig, prompt, "state.0=F32[1]:1s0") == Match(num, num, None)


def test_the_roots_of_a_model(tmp_path: Path) -> None:
    """By fingerprint where it is known, else by name; a folder of another name is no root."""
    layout = {"block_size": "4"}
    good = compute_root_hash("ab" * 32, layout)
    for name, fingerprint in ((root_name(good), "ab" * 32), ("0" * 16, "ab" * 32), ("1" * 16, "x")):
        folder = tmp_path / "blocks" / name
        folder.mkdir(parents=True)
        described = {"model": "m", "fingerprint": fingerprint, "layout": layout}
        (folder / "root.json").write_text(json.dumps(described))

    def found(model: str, fingerprint: str | None) -> list[bytes]:
        fs = RealFileSystem()
        return [root for root, _ in roots_of(tmp_path, fs, model=model, fingerprint=fingerprint)]

    assert found("m", None) == found("other name", "ab" * 32) == [good]
    assert found("other name", None) == found("m", "cd" * 32) == []
