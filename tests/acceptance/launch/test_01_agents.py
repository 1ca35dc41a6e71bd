"""Every agent that omlx launches calls a tool and goes on with its conversation."""

from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.launch.course import Course, first_turns
from tests.agents import AGENTS


@pytest.mark.parametrize("name", AGENTS)
def test_launched_it_calls_a_tool_and_goes_on(
    name: str, tmp_path: Path, demo: Path, figure: Figure
) -> None:
    course = Course(AGENTS[name], tmp_path, demo)
    try:
        first_turns(course)
    finally:
        course.close()
    shown = ", ".join(f"{turn.name}: {turn.uncached} of {turn.prompt}" for turn in course.turns)
    figure(f"{course.version}: uncached {shown}")
