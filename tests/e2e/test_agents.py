"""Real coding agents through the real launcher and server; scripts/agents runs these."""

import os
from pathlib import Path

import pytest

from tests import models
from tests.acceptance.launch.course import SLACK, Course, first_turns
from tests.agents import AGENTS

pytestmark = [pytest.mark.agents, pytest.mark.timeout(1800)]
_NAMED = os.environ.get("OMLX_TEST_AGENTS", "all")
NAMES = list(AGENTS) if _NAMED == "all" else _NAMED.split()


@pytest.mark.parametrize("name", NAMES)
def test_it_calls_a_tool_and_a_second_prompt_costs_its_new_tokens(
    name: str, tmp_path: Path
) -> None:
    course = Course(AGENTS[name], tmp_path, models.demo_model())
    try:
        first_turns(course)
    finally:
        course.close()
    for turn in course.turns:
        assert turn.uncached <= turn.new + SLACK, turn
