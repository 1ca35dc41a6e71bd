"""What each turn of each agent costs, beside the best of three other servers.

Writes docs/bench/agents.json, from which scripts/gen makes the table of docs/guide/agents.md.
"""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.launch.course import SLACK, Course, whole_course
from tests.agents import AGENTS, REPOSITORY

_RESULT = REPOSITORY / "docs" / "bench" / "agents.json"
PEERS: dict[str, dict[str, int | None]] = json.loads(
    (REPOSITORY / "tests" / "data" / "peers.json").read_text()
)["agents"]


@pytest.mark.parametrize("name", AGENTS)
def test_a_turn_costs_its_new_tokens(name: str, tmp_path: Path, demo: Path, figure: Figure) -> None:
    course = Course(AGENTS[name], tmp_path, demo)
    try:
        whole_course(course)
    finally:
        course.close()
    _note(name, course)
    turns = {turn.name: turn for turn in course.turns}
    figure(
        f"{course.version}: "
        + ", ".join(f"{turn.name} {turn.uncached}/{turn.prompt}" for turn in course.turns)
    )
    for turn in turns.values():
        assert turn.uncached <= turn.new + SLACK, f"{turn.name}: {turn}"
    for cell, best in PEERS[name].items():
        if best is not None:
            # Nobody has what the agent has never said before, such as another minute.
            most = max(best, turns[cell].new) + SLACK
            assert turns[cell].uncached <= most, f"{cell}: {turns[cell]} against {best}"
    head = turns["other"]
    # Aider says the rules once more after what its user says.
    assert head.uncached < max(head.prompt // 10, 256), "tools and system are shared"


def _note(name: str, course: Course) -> None:
    """Put the turns of an agent into the table of all."""
    known: dict[str, Any] = json.loads(_RESULT.read_text()) if _RESULT.exists() else {}
    agents: dict[str, Any] = known.get("agents", {})
    agents[name] = {
        "version": course.version,
        "turns": [turn.row() for turn in course.turns],
        "peers": PEERS[name],
    }
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"
    result = {"machine": machine, "commit": commit, "agents": dict(sorted(agents.items()))}
    _RESULT.write_text(json.dumps(result, indent=2) + "\n")
