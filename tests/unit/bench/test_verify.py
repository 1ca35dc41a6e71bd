"""The four checks: a good server passes, and each way of being broken fails the check it should."""

from collections.abc import Callable

import pytest

from omlx.bench.failure import BenchError, Fault, RequestError
from omlx.bench.ownverify import both
from omlx.bench.result import Check
from omlx.bench.step import Step, Steps
from omlx.bench.verify import CONCURRENT, NAMES, RESTART, SAME, TOOLS, Lost, Verifier, Wanted
from tests.fakes.caching import CachingServer, Habits

Outcomes = dict[str, Check]


def checked(server: CachingServer, *, restarts: bool = True, **given: object) -> Outcomes:
    restart = server.restart if restarts else None
    wanted = Wanted(seed="1", num_tokens=600, limit_s=20.0)
    options = {"restart": restart, **given}
    checks = Verifier(server.target, wanted, Steps(4), **options).all()  # type: ignore[arg-type]
    assert [check.name for check in checks] == list(NAMES)
    return {check.name: check for check in checks}


def outcomes(habits: Habits, **given: object) -> Outcomes:
    with CachingServer(habits) as server:
        return checked(server, **given)


def passed(found: Outcomes) -> dict[str, bool | None]:
    return {name: check.is_passed for name, check in found.items()}


def test_a_good_server_passes() -> None:
    found = outcomes(Habits())
    assert set(passed(found).values()) == {True}, found
    assert found[SAME].figures["uncached_tokens"] == 1
    assert found[SAME].figures["first_uncached_tokens"] == found[SAME].figures["prompt_tokens"]
    assert found[RESTART].figures["disk_tokens"] == found[SAME].figures["prompt_tokens"] - 1  # type: ignore[operator]
    figures = found[CONCURRENT].figures
    assert (figures["requests"], figures["errors"]) == (4, 0)
    assert 600 < figures["uncached_tokens"] < 700  # type: ignore[operator]
    assert "the second time 1 of" in found[SAME].reason


def test_without_a_cache_all_four_fail() -> None:
    found = outcomes(Habits(is_caching=False))
    assert set(passed(found).values()) == {False}, found
    size = found[SAME].figures["prompt_tokens"]
    assert f"{size:,} of {size:,} tokens had to be computed" in found[SAME].reason
    assert "once and the rest of each is" in found[CONCURRENT].reason


def test_a_cache_that_is_lost_with_the_process() -> None:
    found = outcomes(Habits(is_kept=False))
    assert passed(found) == {SAME: True, RESTART: False, TOOLS: True, CONCURRENT: True}
    assert "cache.load lets a server compute" in found[RESTART].reason


def test_coarse_hits_fail_and_fine_ones_pass() -> None:
    assert outcomes(Habits(granularity=16))[SAME].is_passed
    assert outcomes(Habits(granularity=256))[SAME].is_passed is False


def test_a_server_that_was_not_restarted() -> None:
    with CachingServer() as server:
        found = checked(server, restart=lambda: server.target)
    assert found[RESTART].is_passed is False
    assert "was not restarted: it has run for" in found[RESTART].reason


def test_a_restart_that_fails() -> None:
    def restart() -> object:
        raise BenchError("it does not start")

    with CachingServer() as server:
        found = checked(server, restart=restart)
    assert (found[RESTART].is_passed, found[RESTART].reason) == (False, "it does not start")
    assert found[SAME].is_passed and found[TOOLS].is_passed


def test_nobody_may_restart_it() -> None:
    found = outcomes(Habits(), restarts=False)
    assert found[RESTART].is_passed is None
    assert "--restart-command" in found[RESTART].reason


def test_another_order_of_tools_that_is_not_made_stable() -> None:
    found = outcomes(Habits(tools="sent"))
    assert passed(found) == {SAME: True, RESTART: True, TOOLS: False, CONCURRENT: True}
    lost = Lost(320, 'tool 0 "read_file"', "order changed")
    found = outcomes(Habits(tools="sent"), explain=lambda _: lost)
    assert 'first lost block is 20, at token 320, tool 0 "read_file"' in found[TOOLS].reason


OFF = Habits(tools="sent", tool_order=False)


def test_without_stable_prompts_the_lost_block_has_to_be_named() -> None:
    asked: list[str] = []

    def explain(request_id: str) -> Lost:
        asked.append(request_id)
        return Lost(400, 'tool 4 "list_folder"', "order changed")

    found = outcomes(OFF, explain=explain)[TOOLS]
    assert found.is_passed, found.reason
    assert found.figures["lost_block"] == 25
    assert found.figures["lost_part"] == 'tool 4 "list_folder"'
    assert found.figures["change"] == "order changed"
    assert asked and asked[0].startswith("chatcmpl-")


def test_the_servers_own_word_for_it_will_do() -> None:
    found = outcomes(OFF)[TOOLS]
    assert found.is_passed
    assert found.figures["lost_part"] == "tool 0"
    cached = found.figures["prompt_tokens"] - found.figures["uncached_tokens"]  # type: ignore[operator]
    assert found.figures["lost_token"] == cached


@pytest.mark.parametrize(
    ("explain", "word"),
    [
        (lambda _: Lost(400, "system block 0"), "is not a tool"),
        (lambda _: Lost(3, 'tool 0 "read_file"'), "is not a tool"),
        (lambda _: None, "nothing says why"),
    ],
)
def test_a_miss_that_is_explained_wrongly(explain: Callable[[str], Lost | None], word: str) -> None:
    habits = Habits(tools="sent", tool_order=False, tells_parts=False)
    found = outcomes(habits, explain=explain)[TOOLS]
    assert found.is_passed is False
    assert word in found.reason


def test_an_order_that_is_stored_already_tells_nothing() -> None:
    with CachingServer(Habits(tools="sent", tool_order=False)) as server:
        checked(server)
        found = checked(server)[TOOLS]
    assert found.is_passed is None
    assert "--seed" in found.reason


def test_a_template_without_tools() -> None:
    found = outcomes(Habits(tools="hidden"))
    assert found[TOOLS].is_passed is None
    assert "prints no tools" in found[TOOLS].reason


def test_hits_with_another_answer_fail_unless_it_is_a_tie() -> None:
    found = outcomes(Habits(wrong_hits=True))
    assert found[SAME].is_passed is False
    assert "its answer is another one: token 0 is" in found[SAME].reason
    assert outcomes(Habits(wrong_hits=True, margin=0.1))[SAME].is_passed
    assert outcomes(Habits(wrong_hits=True, is_omlx=False))[SAME].is_passed, "no scores, no verdict"


def test_answers_that_are_others_than_alone() -> None:
    found = outcomes(Habits(wrong_at_once=True, pause_s=0.3))
    assert passed(found) == {SAME: True, RESTART: True, TOOLS: True, CONCURRENT: False}
    assert "3 of 4 answers are others than alone: token 0 is" in found[CONCURRENT].reason


def test_requests_at_once_that_each_compute_everything() -> None:
    found = outcomes(Habits(is_shared=False, pause_s=0.3))
    assert found[SAME].is_passed
    assert found[CONCURRENT].is_passed is False
    assert "computed 2," in found[CONCURRENT].reason


def test_requests_at_once_that_are_refused() -> None:
    found = outcomes(Habits(busy=2, pause_s=0.3))
    assert found[CONCURRENT].is_passed is False
    assert "2 of 4 requests failed" in found[CONCURRENT].reason
    assert found[CONCURRENT].figures["errors"] == 2


def test_a_server_that_counts_nothing() -> None:
    found = outcomes(Habits(has_counts=False, is_omlx=False))
    assert set(passed(found).values()) == {None}
    assert "prompt_tokens_details.cached_tokens" in found[SAME].reason


def test_only_omlx_is_asked_for_scores() -> None:
    for is_omlx in (True, False):
        with CachingServer(Habits(is_omlx=is_omlx)) as server:
            assert set(passed(checked(server)).values()) == {True}
        assert all(("logprobs" in body) is is_omlx for body in server.seen.bodies)


def test_an_error_fails_one_check_and_nobody_there_ends_all() -> None:
    with CachingServer(Habits(fails_at=1)) as server:
        found = checked(server)
    assert (found[SAME].is_passed, found[TOOLS].is_passed) == (False, True)
    assert "500: it broke" in found[SAME].reason
    with pytest.raises(RequestError) as caught:
        checked(server)
    assert caught.value.fault is Fault.REFUSED


def test_steps_are_told() -> None:
    said: list[Step] = []
    with CachingServer() as server:
        Verifier(server.target, Wanted(num_tokens=600), Steps(4, said.append)).all()
    assert [step.what for step in said] == [SAME, TOOLS, CONCURRENT, RESTART]


def test_both_halves_of_the_check_of_tools() -> None:
    def check(is_passed: bool | None, **figures: int) -> Check:
        return Check(TOOLS, is_passed, f"it is {is_passed}", figures)

    whole = both(check(True, a=1), check(True, a=2))
    assert (whole.is_passed, whole.figures) == (True, {"a": 1, "off_a": 2})
    assert whole.reason == "it is True; it is True"
    assert both(check(None), check(False)).is_passed is False
    assert both(check(True), check(None)).is_passed is None
