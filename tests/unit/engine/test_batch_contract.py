"""What engine.batch relies on in mlx-lm, private fields included: a change there shows here."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import BatchKVCache, KVCache, make_prompt_cache

from omlx.engine.batch import Batch, RowInput, RowProgress, RowToken
from omlx.engine.request import SamplingParams
from omlx.engine.sampling import make_sampling
from tests.fakes import tiny

CHUNK = 32
GREEDY = make_sampling(SamplingParams(), seed=0, position=0, num_vocab=tiny.NUM_VOCAB)
Step = tuple[list[RowProgress], list[RowToken]]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build_config({**tiny.CONFIGS["llama"], "num_hidden_layers": 2})


@pytest.fixture
def batch(model: Any) -> Iterator[Batch]:
    b = Batch(model, max_rows=4, prefill_chunk=CHUNK)
    yield b
    b.close()


def cut(caches: list[Any], start: int, end: int) -> list[tuple[mx.array, mx.array]]:
    """Keys and values of a row's tokens, for every layer."""
    return [(c.keys[:, :, start:end], c.values[:, :, start:end]) for c in caches]


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


def row(
    name: str,
    tokens: Sequence[int],
    *,
    num_cached: int = 0,
    caches: list[Any] | None = None,
    max_tokens: int = 5,
    stop: Sequence[Sequence[int]] = (),
    emitted: Sequence[int] = (),
) -> RowInput:
    rest = tokens[num_cached:]
    segments = [s for s in (rest[:-1], rest[-1:]) if s]
    prefix = tokens[:num_cached]
    return RowInput(name, prefix, segments, caches, max_tokens, GREEDY, stop, emitted)


def run(batch: Batch) -> dict[str, list[RowToken]]:
    """Step until every row has finished."""
    tokens: dict[str, list[RowToken]] = {}
    while len(batch):
        for token in batch.step()[1]:
            tokens.setdefault(token.row_id, []).append(token)
    return tokens


def ids(tokens: Sequence[RowToken]) -> list[int]:
    return [t.token for t in tokens]


def distinct(batch: Batch, count: int) -> tuple[list[int], list[int]]:
    """A prompt of 20 tokens whose `count` next ones all differ, and those."""
    for seed in range(50):
        batch.insert(row("probe", prompt(20, seed), max_tokens=count))
        new = ids(run(batch)["probe"])
        if len(set(new)) == count:
            return prompt(20, seed), new
    raise AssertionError("every text repeats itself")


def state_after(model: Any, tokens: Sequence[int]) -> list[KVCache]:
    """The layer caches of one undisturbed prefill in the batch's chunks."""
    caches = make_prompt_cache(model)
    for start in range(0, len(tokens), CHUNK):
        mx.eval(model(mx.array([tokens[start : start + CHUNK]]), cache=caches))
    return caches


def assert_state(layers: Sequence[Any], caches: Sequence[Any], start: int, end: int) -> None:
    assert len(layers) == len(caches)
    for (keys, values), cache in zip(layers, caches, strict=True):
        assert keys.shape[2] == values.shape[2] == end - start
        for got, whole in ((keys, cache.keys), (values, cache.values)):
            np.testing.assert_allclose(
                np.array(got), np.array(whole[:, :, start:end]), rtol=1e-4, atol=1e-4
            )


def test_the_private_fields_are_there(batch: Batch) -> None:
    generator = batch._generator
    assert isinstance(generator, BatchGenerator)
    part = generator._generation_batch
    assert (part.uids, part.tokens, part.prompt_cache) == ([], [], [])
    batch.insert(row("a", [7], max_tokens=9))
    batch.step()
    part = generator._generation_batch
    assert len(part.uids) == len(part.tokens) == 1
    assert {type(c) for c in part.prompt_cache} == {BatchKVCache}
    assert part.prompt_cache[0].left_padding.tolist() == [0]


def test_prefill_steps_end_with_segments_and_chunks(batch: Batch) -> None:
    """A piece is launched in one step and taken up in the next; the last token decodes."""
    tokens = prompt(80)
    batch.insert(RowInput("a", [], [tokens[:10], tokens[10:79], tokens[79:]], None, 3, GREEDY, []))
    steps = [batch.step() for _ in range(7)]
    seen = [[(p.done, p.num_cached, p.step_tokens, p.is_complete) for p in s[0]] for s in steps]
    assert seen == [
        [],
        [(10, 10, 10, False)],
        [(42, 42, 32, False)],
        [(74, 74, 32, False)],
        [(79, 79, 5, False)],
        [(80, 80, 1, True)],
        [],
    ]
    assert [len(s[1]) for s in steps] == [0, 0, 0, 0, 0, 0, 1]
    assert {p.total for s in steps for p in s[0]} == {80}


def test_a_row_has_no_state_before_a_step_has_reached_it(batch: Batch) -> None:
    batch.insert(row("a", prompt(50)))
    assert batch.num_cached("a") == 0
    batch.step()  # launched, not taken up
    assert batch.num_cached("a") == 0
    batch.step()
    assert batch.num_cached("a") == 32


def test_a_row_that_leaves_keeps_what_is_launched(batch: Batch, model: Any) -> None:
    batch.insert(row("a", prompt(90)))
    for _ in range(2):
        batch.step()
    assert batch.num_cached("a") == 32
    batch.settle("a")
    assert batch.num_cached("a") == 64
    whole = state_after(model, prompt(90))
    assert_state(cut(batch.caches("a"), 5, 64), whole, 5, 64)


def test_a_slice_is_right_while_the_next_piece_is_computed(batch: Batch, model: Any) -> None:
    batch.insert(row("a", prompt(90)))
    whole = state_after(model, prompt(90))
    for _ in range(3):
        batch.step()
        num_cached = batch.num_cached("a")
        if num_cached:
            assert_state(cut(batch.caches("a"), 5, num_cached), whole, 5, num_cached)
    assert num_cached == 64


def test_short_prompts_share_a_step_and_long_ones_take_turns(batch: Batch) -> None:
    for name, length in (("a", 11), ("b", 21), ("c", 12)):
        batch.insert(row(name, prompt(length)))
    first = [(p.row_id, p.done) for p in batch.step()[0]]
    assert first == [("a", 10), ("b", 20)], "30 of 32 tokens; the third would not fit"
    assert ("c", 11) in [(p.row_id, p.done) for p in batch.step()[0]]


def test_a_piece_of_a_chunk_ends_on_its_own_grid_and_then_on_the_chunks(batch: Batch) -> None:
    batch.insert(row("a", prompt(100), num_cached=0))
    grains = [8, 16, 32, 4, 32, 32, 32, 32]
    seen = [0]
    for grain in grains:
        batch.step(["a"], grain)
        seen.append(99 - batch.num_left("a"))
    # 8 of the first 32, 8 to the grid of 16, the rest of the chunk, 4, the rest, a chunk, the end.
    assert seen == [0, 8, 16, 32, 36, 64, 96, 99, 99]


def test_only_the_chosen_prompts_compute_and_one_that_is_done_decodes(batch: Batch) -> None:
    for name in "ab":
        batch.insert(row(name, prompt(40)))
    for _ in range(3):
        batch.step(["b"], CHUNK)
    assert (batch.num_left("a"), batch.num_left("b")) == (39, 0)
    tokens = [batch.step([], CHUNK)[1] for _ in range(3)]
    assert {t.row_id for step in tokens for t in step} == {"b"}
    assert batch.num_left("gone") == 0


@pytest.mark.parametrize("num_decoded", range(5))
def test_the_next_token_is_there_before_its_step(
    batch: Batch, model: Any, num_decoded: int
) -> None:
    """What `take_next` gives, and that the rows that stay don't notice."""
    for name in "ab":
        batch.insert(row(name, prompt(20, ord(name)), max_tokens=6))
    alone = ids(run(batch)["a"])
    stays = prompt(20, ord("b"))
    batch.insert(row("b", stays, max_tokens=6))
    other = ids(run(batch)["b"])
    for name in "ab":
        batch.insert(row(name, prompt(20, ord(name)), max_tokens=6))
    seen: dict[str, list[int]] = {"a": [], "b": []}
    while len(seen["a"]) < num_decoded or not batch._by_uid:
        for token in batch.step()[1]:
            seen[token.row_id].append(token.token)
    num_cached = batch.num_cached("a")
    taken = batch.take_next("a")
    assert taken is not None
    assert [*seen["a"], taken.token] == alone[: len(seen["a"]) + 1]
    assert taken.num_cached == num_cached == 20 + len(seen["a"])
    assert (taken.finish, taken.final) == ("length" if len(seen["a"]) == 5 else None, None)
    seen["b"] += ids(run(batch)["b"])
    assert seen["b"] == other


def test_the_next_token_may_be_a_stop(batch: Batch) -> None:
    tokens, new = distinct(batch, 4)
    batch.insert(row("a", tokens, stop=[new[1:3]]))
    seen: list[int] = []
    while len(seen) < 2:
        seen += ids(batch.step()[1])
    taken = batch.take_next("a")
    assert taken is not None and (taken.token, taken.finish) == (new[2], "stop")


def test_a_prompt_has_no_next_token(batch: Batch) -> None:
    batch.insert(row("a", prompt(90)))
    batch.step()
    assert batch.take_next("a") is None
    assert len(batch) == 0


def test_tokens_are_what_the_state_covers(batch: Batch, model: Any) -> None:
    """After each step: as many tokens as positions, and the state is theirs."""
    batch.insert(row("a", prompt(40), max_tokens=4))
    generated: list[int] = []
    while len(generated) < 3:
        _, tokens = batch.step()
        generated += ids(tokens)
        num_cached = batch.num_cached("a")
        if tokens:
            part = batch._generator._generation_batch
            assert part.tokens[0] == [*prompt(40), *generated][:num_cached]
            assert part.prompt_cache[0].size() == num_cached
            assert tokens[0].num_cached == num_cached == 40 + len(generated)
    whole = state_after(model, [*prompt(40), *generated])
    assert_state(cut(batch.caches("a"), 0, 43), whole, 0, 43)


@pytest.mark.parametrize("has_stop", [True, False])
def test_the_final_state_includes_the_last_token(
    batch: Batch, model: Any, *, has_stop: bool
) -> None:
    text, probe = distinct(batch, 5)
    stop = [probe[3:5]] if has_stop else []
    batch.insert(row("a", text, max_tokens=5, stop=stop))
    tokens = run(batch)["a"]
    assert ids(tokens) == probe
    assert [t.finish for t in tokens] == [None] * 4 + ["stop" if has_stop else "length"]
    assert [t.final is None for t in tokens] == [True] * 4 + [False]
    last = tokens[-1]
    assert last.num_cached == 25
    assert last.final is not None
    assert {type(c) for c in last.final} == {KVCache}
    assert {c.offset for c in last.final} == {25}
    whole = state_after(model, [*text, *probe])
    assert_state(cut(last.final, 0, 25), whole, 0, 25)
    assert_state(cut(last.final, 7, 19), whole, 7, 19)


def test_slices_of_rows_of_different_lengths(batch: Batch, model: Any) -> None:
    """Rows that decode together are padded; a slice must not contain padding."""
    lengths = {"a": 9, "b": 31, "c": 20}
    for i, (name, length) in enumerate(lengths.items()):
        batch.insert(row(name, prompt(length, i), max_tokens=20))
    while any(batch.num_cached(name) < length for name, length in lengths.items()):
        batch.step()
    for i, (name, length) in enumerate(lengths.items()):
        whole = state_after(model, prompt(length, i))
        assert_state(cut(batch.caches(name), 0, length), whole, 0, length)
        assert_state(cut(batch.caches(name), 3, 8), whole, 3, 8)


def test_a_slice_equals_what_the_library_extracts(batch: Batch) -> None:
    for i, length in enumerate((5, 30, 17)):
        batch.insert(row(str(i), prompt(length, i), max_tokens=30))
    for _ in range(8):
        batch.step()
    part = batch._generator._generation_batch
    assert len(part.uids) == 3
    for name in "012":
        extracted = part.extract_cache(part.uids.index(batch._rows[name].uid))
        num_cached = batch.num_cached(name)
        assert {c.offset for c in extracted} == {num_cached}
        for (keys, values), cache in zip(
            cut(batch.caches(name), 0, num_cached), extracted, strict=True
        ):
            assert mx.array_equal(keys, cache.keys).item()
            assert mx.array_equal(values, cache.values).item()


def test_slices_stay_right_while_rows_join_and_leave(batch: Batch, model: Any) -> None:
    texts = {name: prompt(n, n) for name, n in (("a", 12), ("b", 45), ("c", 25), ("d", 70))}
    new: dict[str, list[int]] = {name: [] for name in texts}

    def step() -> None:
        for t in batch.step()[1]:
            new[t.row_id].append(t.token)

    def check(*names: str) -> None:
        for name in names:
            num = batch.num_cached(name)
            whole = state_after(model, [*texts[name], *new[name]])
            assert_state(cut(batch.caches(name), 0, num), whole, 0, num)

    batch.insert(row("a", texts["a"], max_tokens=30))
    batch.insert(row("b", texts["b"], max_tokens=30))
    for _ in range(4):
        step()
    check("a", "b")
    batch.insert(row("c", texts["c"], max_tokens=30))
    for _ in range(3):
        step()
    check("a", "b", "c")
    batch.remove("b")  # the longest: the padding of the others shrinks
    batch.insert(row("d", texts["d"], max_tokens=30))
    step()
    check("a", "c", "d")
    batch.remove("c")
    for _ in range(4):
        step()
    check("a", "d")
    assert len(batch) == 2


def test_a_row_may_start_from_given_caches(batch: Batch, model: Any) -> None:
    tokens = prompt(50)
    batch.insert(row("cold", tokens))
    cold = ids(run(batch)["cold"])
    caches = state_after(model, tokens[:37])
    batch.insert(row("warm", tokens, num_cached=37, caches=caches))
    batch.step()
    assert batch.num_cached("warm") == 49
    assert_state(cut(batch.caches("warm"), 0, 49), state_after(model, tokens), 0, 49)
    assert ids(run(batch)["warm"]) == cold


def test_warm_and_cold_rows_prefill_together(batch: Batch, model: Any) -> None:
    texts = [prompt(30, 1), prompt(22, 2)]
    solos: list[list[int]] = []
    for tokens in texts:
        batch.insert(row("solo", tokens))
        solos.append(ids(run(batch)["solo"]))
    batch.insert(row("cold", texts[0]))
    batch.insert(row("warm", texts[1], num_cached=15, caches=state_after(model, texts[1][:15])))
    done = run(batch)
    assert [ids(done["cold"]), ids(done["warm"])] == solos


def test_the_lists_of_the_caller_are_left_alone(batch: Batch, model: Any) -> None:
    tokens = prompt(50)
    caches = state_after(model, tokens[:20])
    prefix, segments, stop = tokens[:20], [tokens[20:49], tokens[49:]], [[1, 2]]
    batch.insert(RowInput("a", prefix, segments, caches, 4, GREEDY, stop))
    run(batch)
    assert prefix == tokens[:20]
    assert segments == [tokens[20:49], tokens[49:]]
    assert stop == [[1, 2]]
    assert len(caches) == len(model.layers)


@pytest.mark.parametrize("when", ["waiting", "prefilling", "decoding"])
def test_a_row_can_be_removed_at_any_time(batch: Batch, when: str) -> None:
    other = prompt(18, 5)
    batch.insert(row("solo", other, max_tokens=8))
    solo = ids(run(batch)["solo"])
    batch.insert(row("other", other, max_tokens=8))
    batch.insert(row("a", prompt(70)))
    for _ in range({"waiting": 0, "prefilling": 2, "decoding": 7}[when]):
        solo = solo[len(batch.step()[1][:1]) :]
    batch.remove("a")
    batch.remove("a")
    assert len(batch) == 1
    done = run(batch)
    assert list(done) == ["other"]
    assert ids(done["other"]) == solo


def test_a_prompt_of_one_token(batch: Batch, model: Any) -> None:
    batch.insert(row("a", [7], max_tokens=3))
    progress, tokens = batch.step()
    assert (progress[0].done, progress[0].is_complete, tokens) == (1, True, [])
    assert_state(cut(batch.caches("a"), 0, 1), state_after(model, [7]), 0, 1)
    assert len(run(batch)["a"]) == 3


def test_a_row_that_runs_again_still_knows_what_it_emitted(batch: Batch) -> None:
    text, new = distinct(batch, 5)
    again = [*text, *new[:3]]
    batch.insert(row("b", again, max_tokens=8, stop=[new[1:5]], emitted=new[:3]))
    done = run(batch)["b"]
    assert ids(done) == new[3:5]
    assert done[-1].finish == "stop"


def test_reset_leaves_an_empty_batch_that_works(batch: Batch) -> None:
    batch.insert(row("a", prompt(20), max_tokens=4))
    expected = ids(run(batch)["a"])
    batch.insert(row("a", prompt(20), max_tokens=4))
    batch.insert(row("b", prompt(50), max_tokens=4))
    batch.step()
    batch.reset()
    assert len(batch) == 0
    batch.insert(row("a", prompt(20), max_tokens=4))
    assert ids(run(batch)["a"]) == expected


def test_a_prompt_that_is_done_waits_where_it_is_told_to(batch: Batch) -> None:
    batch.insert(row("a", [3] * 9, max_tokens=2))
    while not batch.done_ids:
        batch.step()
    for _ in range(3):
        assert batch.step([], starts=False) == ([], [])
    assert batch.done_ids == ["a"] and batch.num_left("a") == 0
    progress, tokens = batch.step()
    assert [p.is_complete for p in progress] == [True] and batch.done_ids == []
    while len(batch):
        tokens += batch.step()[1]
    assert [t.finish for t in tokens] == [None, "length"]


def test_decoding_goes_on_beside_a_prefill(batch: Batch) -> None:
    batch.insert(row("a", prompt(5), max_tokens=20))
    while not batch.step()[1]:
        pass
    batch.insert(row("b", prompt(100)))
    batch.step()
    for _ in range(3):
        progress, tokens = batch.step()
        assert [p.row_id for p in progress] == ["b"]
        assert [t.row_id for t in tokens] == ["a"]
        assert progress[0].step_tokens == CHUNK
