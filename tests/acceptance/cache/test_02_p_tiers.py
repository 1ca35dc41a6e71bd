"""Point 2, cases P8, P14, P16, P18: what comes back from a tier belongs to whom it should, is as
much as there can be, and changes nothing; and nothing is a length like any other."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from omlx.cache.explain import Prompt, Section, diverge, tabulate
from omlx.cache.hashing import chain_hashes, common_prefix, token_array
from omlx.cache.lookup import Hit
from omlx.engine.request import FailureCode
from omlx.models.load import load
from omlx.models.tokenizer import load_codec
from tests.acceptance.cache.cases import (
    ATTENTION,
    B,
    Telling,
    assert_greedy,
    assert_same,
    disk_of,
    prefix_of,
    prompt,
    settle,
    start,
)
from tests.acceptance.conftest import Figure
from tests.fakes import tiny
from tests.fakes.blocks import ROOT
from tests.fakes.cache import Rig
from tests.fakes.harness import Answer, Harness

HEADER = np.random.default_rng(0).integers(3, Telling.FIRST_MARKER, B + 3).tolist()


def conversation(number: int) -> list[int]:
    """A text of its own after the header that all share, with its marker here and there."""
    text = np.random.default_rng(1 + number).integers(3, Telling.FIRST_MARKER, 3 * B).tolist()
    for at in range(0, 3 * B, 11):
        text[at] = Telling.FIRST_MARKER + number
    return [*HEADER, *text]


def test_p8_no_foreign_marker_in_twenty_rounds(tmp_path: Path, figure: Figure) -> None:
    """Thirty conversations are seeded; memory holds three of them, the disk sixteen."""
    model = Telling()
    size = (B + 3 * B) * (Telling.NUM_MARKERS + 8) * 2
    sizes = {"memory_bytes": 3 * size, "disk_bytes": 16 * size, "write_delay_s": 0.0}
    harness = Harness(model, tmp_path / "cache", block_size=B, prefill_chunk=2 * B, **sizes)

    def check(number: int, tokens: list[int]) -> None:
        assert tokens == [Telling.FIRST_MARKER + number] * len(tokens)

    for number in range(30):
        check(number, harness.ask(conversation(number), 6).tokens)
    settle(harness)
    num_reused = {"new": 0, "old": 0}
    for round_idx in range(20):
        new = [30 + 2 * round_idx, 31 + 2 * round_idx]
        old = [new[0] - 5, new[0] - 8]
        ids = [harness.submit(conversation(number), 6) for number in (*new, *old)]
        answers = harness.collect(*ids)
        for number, request_id in zip((*new, *old), ids, strict=True):
            answer = answers[request_id]
            check(number, answer.tokens)
            assert number in old or answer.cached in (0, len(HEADER))
            num_reused["old" if number in old else "new"] += answer.cached > 0
        settle(harness)  # what waits for the disk is found in its queue, and not read
    counters = disk_of(harness).counters()
    assert counters.evicted > 50 and counters.blocks_read > 20 and counters.bad == {}
    evicted = prefix_of(harness)._memory.evicted
    assert evicted > 50
    harness.stop()
    figure(
        f"P8: 20 rounds of 2 new and 2 old conversations, no foreign marker; reused by "
        f"{num_reused['new']} new and {num_reused['old']} old of 40; evicted {evicted} blocks from "
        f"memory and {counters.evicted} from disk, read {counters.blocks_read}"
    )


def test_p8_the_marker_test_would_see_a_foreign_block(tmp_path: Path, figure: Figure) -> None:
    """Negative control: put one conversation's last block into another's place."""
    harness = Harness(Telling(), tmp_path / "cache", block_size=B, prefill_chunk=2 * B)
    for number in (0, 1):
        harness.ask(conversation(number), 6)
    entries = [e for e in prefix_of(harness)._memory._entries.values() if e.key.count == B]
    for entry in entries:
        donor = next(e for e in entries if Telling.FIRST_MARKER + 1 in e.tokens)
        if Telling.FIRST_MARKER in entry.tokens:
            entry.payload = donor.payload
    assert harness.ask(conversation(0), 6).tokens[0] == Telling.FIRST_MARKER + 1
    harness.stop()
    figure("P8: a foreign block put in by hand shows in the first token")


def test_p8_answers_under_eviction_equal_solo_runs(tmp_path: Path, figure: Figure) -> None:
    """The same with a real model, whose numbers would change."""
    reference = start(ATTENTION, tmp_path / "reference", cache_enabled=False)
    size = 4 * B * 4 * 2 * 2 * 64 * 4
    harness = start(ATTENTION, tmp_path, memory_bytes=2 * size, disk_bytes=5 * size)
    num_cached = 0
    for round_idx in range(20):
        texts = [conversation(number) for number in (2 * round_idx, 2 * round_idx + 1, 0)]
        ids = [harness.submit(text, 6) for text in texts]
        answers = harness.collect(*ids)
        for request_id, text in zip(ids, texts, strict=True):
            assert_greedy(answers[request_id].tokens, reference.ask(text, 6))
            num_cached += answers[request_id].cached
    assert disk_of(harness).counters().evicted > 50
    for h in (harness, reference):
        h.stop()
    figure(f"P8: 60 answers equal their solo runs, {num_cached} tokens of them from the cache")


SHARED, LENGTH = 21_742, 23_169
SMALL = {
    ATTENTION: {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
                "head_dim": 32, "max_position_embeddings": 32_768},
    "gemma3_text": {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
                    "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 512},
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1], "num_attention_heads": 2,
             "num_key_value_heads": 1, "hidden_size": 64, "block_dim": 64, "block_ff_dim": 128,
             "max_position_embeddings": 32_768},
}  # fmt: skip
LOST = {ATTENTION: 0, "gemma3_text": 0, "lfm2": 8192}  # of a fork; see ADR 12


@pytest.mark.parametrize("name", SMALL)
def test_p14_what_is_shared_is_reused_to_a_small_step(
    name: str, tmp_path: Path, figure: Figure
) -> None:
    """21,742 of 23,169 tokens are shared: by a longer prompt, and by one that forks there."""
    model = tiny.build_config({**tiny.CONFIGS[name], **SMALL[name]})
    harness = Harness(model, tmp_path / "cache", prefill_chunk=2048)
    shared = prompt(SHARED)
    harness.ask(shared, 1)
    harness.restart()
    after_end = harness.ask([*shared, *prompt(LENGTH - SHARED, seed=2)], 1).cached
    other = prompt(LENGTH, seed=4)
    harness.ask(other, 1)
    harness.restart()
    forked = [*other[:SHARED], *prompt(LENGTH - SHARED, seed=3)]
    lost = SHARED - harness.ask(forked, 1).cached
    harness.stop()
    figure(
        f"P14 {name}: {SHARED:,} of {LENGTH:,} shared: after a prompt that ended there "
        f"{after_end:,} reused, at a fork inside of one {SHARED - lost:,}"
    )
    assert SHARED - 1 <= after_end <= SHARED, "the end of a prompt is a snapshot point"
    assert lost <= LOST[name]


TOOLS = (
    "You are a helpful agent. You have one tool, read_file. To use it, answer with\n"
    '<tool_call>{"name": "read_file", "arguments": {"path": "PATH"}}</tool_call>\n'
    "and with nothing else."
)


def call_of(path: str) -> str:
    return f'<tool_call>{{"name": "read_file", "arguments": {{"path": "{path}"}}}}</tool_call>'


FIRST = [
    ("system", TOOLS),
    *(("user", "Read notes.txt"), ("assistant", call_of("notes.txt"))),
    *(("user", "Read todo.txt"), ("assistant", call_of("todo.txt"))),
    ("user", "Read list.txt"),
]


def chat(messages: list[tuple[str, str]]) -> str:
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)
    return f"{turns}<|im_start|>assistant\n"


def push_out_of_memory(harness: Harness) -> None:
    """Let another prompt need all the room there is for blocks."""
    tier = prefix_of(harness)._memory
    old, room = set(tier._entries), tier.budget_bytes
    tier.budget_bytes = 70 * prefix_of(harness)._tiers.codec.bytes_per_token
    harness.ask(np.random.default_rng(5).integers(100, 40_000, 70).tolist(), 1)
    assert not old & set(tier._entries)
    tier.budget_bytes = room
    settle(harness)


def test_p16_a_tool_call_after_a_round_trip_is_the_same(
    demo: Path, tmp_path: Path, figure: Figure
) -> None:
    """Between turn 1 and 2 of a chat with a tool, another prompt pushes it from memory to disk."""
    tokenizer, model = load_codec(demo), load(demo).model
    stop = ((tokenizer.encode("<|im_end|>")[0],),)
    turn1 = tokenizer.encode(chat(FIRST))
    answers: dict[str, Answer] = {}
    for tier in ("memory", "disk"):
        harness = Harness(model, tmp_path / tier, block_size=B, write_delay_s=60.0)
        first = harness.ask(turn1, 40, stop=stop)
        called = [*FIRST, ("assistant", tokenizer.decode(first.tokens)), ("user", "Read plan.txt")]
        turn2 = tokenizer.encode(chat(called))
        if tier == "disk":
            assert disk_of(harness).counters().blocks_written == 0
            push_out_of_memory(harness)
        answers[tier] = again = harness.ask(turn2, 40, stop=stop)
        assert again.stats is not None and again.cached > len(turn1)
        assert again.cached == getattr(again.stats, f"cached_{tier}")
        harness.stop()
    assert_same(answers["disk"], answers["memory"])
    text = tokenizer.decode(answers["disk"].tokens)
    found = re.fullmatch(r"<tool_call>(.*)</tool_call>", text)
    assert found, text
    call = json.loads(found[1])
    assert call["name"] == "read_file" and "plan.txt" in call["arguments"].values()
    figure(f"P16: {answers['disk'].cached} tokens from disk, logits bit-equal, call {found[1]}")


def test_p18_nothing_shares_nothing(tmp_path: Path, figure: Figure) -> None:
    nothing = token_array([])
    assert common_prefix(nothing, nothing) == 0
    assert common_prefix(nothing, token_array([1])) == common_prefix(token_array([1]), nothing) == 0
    assert chain_hashes(ROOT, nothing, B) == []
    rig = Rig()
    assert rig.compute([1]).num_tokens == 0
    hits: list[Hit] = []
    rig.prefix.look_up(nothing, hits.append)
    rig.settle()
    assert [hit.num_tokens for hit in hits] == [0]
    assert rig.look_up([1]).num_tokens == 0, "the last token is always computed"
    assert rig.look_up([1, 2]).num_tokens == 1
    empty = Prompt(nothing)
    for other in (empty, Prompt(token_array([1]))):
        assert diverge(empty, other, str) is None and diverge(other, empty, str) is None
    rows = tabulate((), 0, 0)
    assert [row.section for row in rows] == list(Section)
    assert all(row.num_tokens == row.num_cached == 0 for row in rows)
    figure("P18: 0 of 0 is 0 in hashing, look-up, comparison and table")


@pytest.mark.parametrize("name", [ATTENTION, "lfm2"])
def test_p18_an_empty_prompt_is_refused_and_one_token_is_served(
    name: str, tmp_path: Path, figure: Figure
) -> None:
    harness = start(name, tmp_path)
    refused = harness.ask([])
    assert refused.failed is not None and refused.failed.code is FailureCode.BAD_REQUEST
    cold = harness.ask([7])
    assert cold.cached == 0
    again = harness.ask([7])
    assert again.cached == 0
    assert_same(again, cold)
    assert len(make_prompt_cache(harness.model)) > 0
    harness.stop()
    figure(f'P18 {name}: an empty prompt: "{refused.failed.message}"; one token: 0 reused, equal')
