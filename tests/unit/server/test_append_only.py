"""P13: what of one turn's prompt the next turn's begins with, by template."""

import pytest

from tests.fakes.chains import step
from tests.fakes.templated import template_names

# They print what was thought only since the last message of the user's, as they were trained.
FORGET = {
    "GLM-4.6",
    "GLM-4.7-Flash",
    "MiniMax-M2",
    "Qwen-Qwen3-0.6B",
    "google-gemma-4-31B-it",
    "openai-gpt-oss-120b",
    "openbmb-MiniCPM5-1B",
}
# They print the tools before the last message of the user's.
MOVE_TOOLS = {"mistralai-Mistral-Nemo-Instruct-2407"}
# None opens an answer otherwise than it prints one without a thought, but these.
OPEN_OTHERWISE = {"GLM-4.7-Flash", "MiniMax-M2"}


@pytest.mark.parametrize("name", template_names())
def test_p13_a_chain_whose_thoughts_are_echoed_only_grows(name: str) -> None:
    """P13"""
    found = step(name, "echoed")
    assert found.second.startswith(found.first)


@pytest.mark.parametrize("name", template_names())
def test_p13_a_chain_whose_thoughts_are_dropped_grows_but_for_the_opening(name: str) -> None:
    """P13"""
    found = step(name, "dropped")
    lost = len(found.first) - found.shared
    assert found.second.startswith(found.first) == (name not in OPEN_OTHERWISE)
    assert lost <= len("<think>\n")


@pytest.mark.parametrize("name", template_names())
def test_p13_an_unrelated_message_costs_at_most_the_chain_before_it(name: str) -> None:
    """P13"""
    found = step(name, "user")
    is_append_only = found.second.startswith(found.first)
    assert is_append_only == (name not in FORGET | MOVE_TOOLS)
    if name not in MOVE_TOOLS:
        assert found.shared >= found.first.index("do it") + len("do it")


def test_a_thought_and_a_text_beside_a_call_are_both_told_where_only_one_can_be() -> None:
    shown = step("openai-gpt-oss-120b", "echoed").second
    assert "thought 2" in shown
    assert shown.count("I look.") == 2
