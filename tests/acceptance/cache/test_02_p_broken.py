"""Point 2, cases P9, P15, P20: requests that are cut off and blocks that can't be read any more
leave nothing wrong behind, and nothing of what was done is done twice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.engine.request import FinishReason, Prefilled, Token
from tests.acceptance.cache.cases import (
    ATTENTION,
    B,
    FailingReads,
    Interrupting,
    assert_close,
    assert_same,
    block_files,
    prompt,
    settle,
    start,
    use_file_system,
)
from tests.acceptance.conftest import Figure
from tests.fakes.harness import Answer, Harness

KINDS = [ATTENTION, "gemma3_text", "lfm2", "mamba2"]
WHOLE = prompt(6 * B + 11)  # three chunks, a short one and the last token
LONGER = [*WHOLE, *prompt(2 * B, seed=2)]


def cut_off(harness: Harness, is_time: Callable[[list[object]], bool]) -> Answer:
    """A request whose client goes away as soon as the events so far are such."""
    request_id = harness.submit(WHOLE, 20)
    seen: list[object] = []
    answer, is_cut = Answer(), False
    while answer.reason is None:
        for event in harness.events.get(timeout=60):
            seen.append(event)
            if isinstance(event, Token):
                answer.tokens.append(event.token)
            answer.reason = getattr(event, "reason", None)
            answer.stats = getattr(event, "stats", None)
            if not is_cut and is_time(seen):
                is_cut = True
                harness.engine.abort(request_id)
    return answer


def after_tokens(number: int) -> Callable[[list[object]], bool]:
    return lambda seen: sum(isinstance(e, Token) for e in seen) == number


def after_chunks(number: int) -> Callable[[list[object]], bool]:
    return lambda seen: sum(isinstance(e, Prefilled) for e in seen) == number


MOMENTS = {
    "first token": after_tokens(1),
    "7th token": after_tokens(7),
    "last token": after_tokens(20),
    "chunk border": after_chunks(2),
    "end of prefill": after_chunks(4),
}


@pytest.mark.parametrize("name", KINDS)
def test_p9_a_client_that_leaves_at_any_time_leaves_no_wrong_state(
    name: str, tmp_path: Path, figure: Figure
) -> None:
    reference = start(name, tmp_path, cache_enabled=False)
    cold, longer = reference.ask(WHOLE, 20), reference.ask(LONGER)
    reference.stop()
    cached: dict[str, int] = {}
    for moment, is_time in MOMENTS.items():
        harness = start(name, tmp_path / moment)
        left = cut_off(harness, is_time)
        assert left.reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert left.tokens == cold.tokens[: len(left.tokens)]
        cached[moment] = check_what_is_left(harness, cold, longer)
    for call in (1, 3, 4, 6, 8):  # within a chunk or a decode step
        harness = start(name, tmp_path / str(call))
        inner = harness.model._model
        harness.model._model = Interrupting(inner, call, lambda h=harness: h.engine.abort("r0"))
        left = harness.ask(WHOLE, 20)
        assert left.reason is FinishReason.ABORT
        assert left.tokens == cold.tokens[: len(left.tokens)]
        harness.model._model = inner
        cached[f"within step {call}"] = check_what_is_left(harness, cold, longer)
    figure(f"P9 {name}: next answer equals cold; reused {list(cached.values())} of {len(WHOLE)}")
    assert cached["chunk border"] >= 2 * B and cached["first token"] == len(WHOLE) - 1


def check_what_is_left(harness: Harness, cold: Answer, longer: Answer) -> int:
    """The same prompt and a longer one, now and after a restart; what the same prompt reused."""
    warm = harness.ask(WHOLE, 20)
    assert_same(warm, cold)
    assert_close(harness.ask(LONGER), longer)
    harness.restart()
    assert_same(harness.ask(WHOLE, 20), cold)
    assert_close(harness.ask(LONGER), longer)
    harness.stop()
    return warm.cached


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("how", ["missing", "truncated", "EIO"])
def test_p15_a_block_that_fails_to_load_is_computed_again(
    name: str, how: str, tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there when the load is planned, and fails when it is read."""
    fs = FailingReads(how)
    use_file_system(monkeypatch, fs)
    harness = start(name, tmp_path, snapshot_interval=2 * B)
    cold = harness.ask(WHOLE)
    assert harness.stop() == 0
    if name == "mamba2":  # it has snapshots only
        bad = max(tmp_path.rglob("*.state.*"), key=lambda p: p.stat().st_mtime_ns)
    else:
        bad = block_files(tmp_path)[4]
    harness.engine = harness._start()
    fs.spoil = lambda path: path == bad
    warm = harness.ask(WHOLE)
    assert fs.num_failed > 0
    if name in (ATTENTION, "gemma3_text"):
        assert warm.cached == 4 * B
    assert 0 < warm.cached < len(WHOLE)
    assert_same(warm, cold)
    fs.spoil = lambda path: False
    assert harness.ask(WHOLE).cached == len(WHOLE) - 1
    harness.restart()
    again = harness.ask(WHOLE)
    assert again.cached == len(WHOLE) - 1, "what was lost is computed and written again"
    assert_same(again, cold)
    harness.stop()
    figure(f"P15 {name}, {how}: {warm.cached} of {len(WHOLE)} kept, equal to cold, written again")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("is_new_process", [False, True])
def test_p20_each_attempt_starts_where_the_last_one_stopped(
    name: str, tmp_path: Path, figure: Figure, *, is_new_process: bool
) -> None:
    """The client drops at 30 % of the prefill and sends the same body again, five times."""
    body = prompt(40 * B + 1)  # twenty chunks, and the last token
    harness = start(name, tmp_path)
    inner = harness.model._model
    starts: list[int] = []
    for attempt in range(5):
        abort = lambda i=attempt: harness.engine.abort(f"r{i}")  # noqa: E731
        harness.model._model = Interrupting(inner, 7, abort)
        answer = harness.ask(body, 2)
        starts.append(answer.cached)
        settle(harness)
        if is_new_process:
            harness.restart()
        harness.model._model = inner
    for before, now in zip(starts, starts[1:], strict=False):
        assert now >= min(before + 12 * B, 40 * B) and now % B == 0
    assert starts[0] == 0 and starts[-1] == 40 * B
    assert answer.reason is FinishReason.LENGTH
    reference = start(name, tmp_path / "reference", cache_enabled=False)
    assert_same(answer, reference.ask(body, 2))
    reference.stop()
    harness.stop()
    where = "after restarts" if is_new_process else "in one process"
    figure(f"P20 {name}, {where}: five attempts at {len(body)} tokens reuse {starts}")
