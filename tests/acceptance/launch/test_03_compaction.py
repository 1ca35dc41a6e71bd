"""A conversation that outgrows the model's window: the agent sums it up and goes on."""

from pathlib import Path

import pytest

from omlx.storage.history import History
from tests.acceptance.conftest import Figure
from tests.acceptance.launch.course import MODEL, Course
from tests.acceptance.serve.test_03_restart import words
from tests.agents import AGENTS
from tests.live import wait_until

# Window, and words of each of the texts that together outgrow it. Codex keeps 20,000 tokens of what
# its user said.
_PLANS = {
    "claude-code": (64_000, 14_000, 4),
    "codex": (56_000, 8_000, 6),
    "copilot": (40_000, 10_000, 4),
    "qwen-code": (64_000, 7_000, 7),
    "opencode": (40_000, 10_000, 4),
}


@pytest.mark.parametrize("name", _PLANS)
def test_the_session_survives(name: str, tmp_path: Path, demo: Path, figure: Figure) -> None:
    window, num_words, num_texts = _PLANS[name]
    course = Course(AGENTS[name], tmp_path, demo, serve=("--context-window", str(window)))
    try:
        asked = ["TOOLTEST show README.md"]
        asked += [words(num_words, seed) for seed in range(num_texts)]
        asked.append("and again")
        for number, text in enumerate(asked):
            ran = course.desk.ask(text, goes_on=number > 0)
            wait_until(lambda: course.live.status()["requests"]["active"] == 0)
            told = f"{number}: {ran.stdout[-1500:]}\n{ran.stderr[-1500:]}"
            assert ran.code == 0, told
        assert ran.says("tree done"), told
        lines = [line for line in course.live.lines if "context_length_exceeded" in line]
    finally:
        course.close()
    history = History(course.omlx_home / "state" / "journal.sqlite3")
    rows = [row for row in reversed(history.of_model(MODEL, 400)) if row.outcome == "stop"]
    last = next(row for row in reversed(rows) if "and again" in (row.text or ""))
    largest = max(row.prompt_tokens for row in rows)
    said = rows[0].prompt_tokens + num_words * num_texts
    figure(
        f"{course.version}: window {window}, {said} tokens said in {len(asked)} prompts; "
        f"the largest prompt had {largest}, the last {last.prompt_tokens}; "
        f"{len(lines)} refused as too long"
    )
    assert said > window, "nothing had to be summed up"
    assert last.prompt_tokens < said - num_words, "nothing was summed up"
