"""A conversation of a real agent with the real server, and what each of its turns cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path

from tokenizers import Tokenizer

from omlx.storage.entry import JournalEntry
from omlx.storage.history import History
from tests import clients
from tests.agents import Agent, Desk, Ran
from tests.fakes.agent import ANSWER, EDITED, SECRET, agent_model
from tests.live import Live, wait_until

MODEL = "agent"
SLACK = 16  # tokens that an append turn may compute beside its new ones


@dataclass(frozen=True, slots=True)
class Turn:
    """The largest request of one turn, in tokens; `new` are those after the first character that
    no earlier prompt and its answer had."""

    name: str
    prompt: int
    cached: int
    new: int
    requests: int

    @property
    def uncached(self) -> int:
        return self.prompt - self.cached

    def row(self) -> dict[str, object]:
        return {
            "turn": self.name,
            "prompt": self.prompt,
            "cached": self.cached,
            "uncached": self.uncached,
            "new": self.new,
            "requests": self.requests,
        }


class Course:
    """One agent, its desk and its server."""

    def __init__(
        self, agent: Agent, folder: Path, demo: Path, *, serve: Sequence[str] = ()
    ) -> None:
        self.version = clients.install(agent.name)
        self.omlx_home = folder / "omlx"
        self._models = folder / "models"
        agent_model(demo, self._models / MODEL)
        self._tokenizer = Tokenizer.from_file(str(self._models / MODEL / "tokenizer.json"))
        self._serve = serve
        self.desk = Desk(agent, folder, self.omlx_home, model=MODEL)
        self.live = self._start()
        self._seen: list[JournalEntry] = []
        self.turns: list[Turn] = []

    def _start(self) -> Live:
        args = ("--model-dir", str(self._models), "--journal-text", *self._serve)
        return Live(*args, home=self.omlx_home)

    def restart(self, *, is_killed: bool = False) -> None:
        """End the server and start it again, on another port."""
        if is_killed:
            wait_until(self.live.is_written)
            self.live.kill()
        else:
            assert self.live.stop() == 0
        self.live = self._start()

    def close(self) -> None:
        if self.live.process.poll() is None:
            self.live.stop()

    def turn(self, names: Sequence[str], text: str, *, goes_on: bool = False) -> Ran:
        """Have the agent answer; the last so many steps of it are noted under these names."""
        if goes_on and self.desk.agent.is_typed:
            ran = self._typed(text)
        else:
            ran = self.desk.ask(text, goes_on=goes_on)
        wait_until(lambda: self.live.status()["requests"]["active"] == 0)
        rows = self._new_rows()
        finished = [row for row in rows if row.outcome == "stop"]
        told = f"{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}\n{''.join(self.live.lines[-20:])}"
        assert finished, told
        assert ran.code == 0, told
        assert not [row for row in rows if row.outcome == "failed"], told
        size = max(row.prompt_tokens for row in finished)
        # Titles and summaries are much smaller, and no step of the conversation.
        steps = [row for row in finished if row.prompt_tokens > 0.75 * size]
        for name, row in zip(names, steps[-len(names) :], strict=True):
            known = [*self._seen, *(one for one in rows if one.time < row.time)]
            new = self._num_new(row, known)
            turn = Turn(name, row.prompt_tokens, row.cached, new, len(rows))
            self.turns.append(turn)
        self._seen += rows
        return ran

    def _typed(self, text: str) -> Ran:
        """The same in a terminal: it is over once an answer to it has ended."""
        ran = self.desk.type(
            text,
            lambda: any(
                row.outcome == "stop" and text in (row.text or "") for row in self._new_rows()
            ),
        )
        return Ran(0, ran.stdout, ran.stderr)  # it was ended by the test

    def _new_rows(self) -> list[JournalEntry]:
        history = History(self.omlx_home / "state" / "journal.sqlite3")
        known = {row.request_id for row in self._seen}
        rows = history.of_model(MODEL, 200)
        return [row for row in reversed(rows) if row.request_id not in known]

    def _num_new(self, row: JournalEntry, known: Sequence[JournalEntry]) -> int:
        text = row.text or ""
        shared = max((len(commonprefix([text, _whole(one)])) for one in known), default=0)
        return len(self._tokenizer.encode(text[shared:], add_special_tokens=False).ids)

    def prompt_of(self, name: str) -> str:
        """The text of the last prompt of a turn."""
        turn = next(turn for turn in self.turns if turn.name == name)
        rows = [row for row in self._seen if row.prompt_tokens == turn.prompt]
        return rows[-1].text or ""


def _whole(row: JournalEntry) -> str:
    """A prompt and the answer to it, which is always the same but for calls."""
    return (row.text or "") + ANSWER


def first_turns(course: Course) -> None:
    """A prompt with a call of a tool, or an edit, and a second prompt in the conversation."""
    agent = course.desk.agent
    if agent.word == "EDITTEST":
        course.turn(["turn 1"], f"{agent.word} write what you know")
        assert EDITED in (course.desk.project / "README.md").read_text()
    else:
        ran = course.turn(["turn 1", "tool step"], f"{agent.word} show README.md")
        assert SECRET in course.prompt_of("tool step"), "the tool did not run"
        assert ran.says("tree done")
    ran = course.turn(["turn 2"], "and again", goes_on=True)
    assert ran.says("tree done")


def whole_course(course: Course) -> None:
    """The cells that other servers were measured in, then a tool and what a crash leaves."""
    word = course.desk.agent.word
    course.turn(["cold"], "say hi")
    course.turn(["again"], "say hi")
    course.turn(["other"], "Tell me another thing")
    course.turn(["more"], "and again", goes_on=True)
    names = ["edit"] if word == "EDITTEST" else ["tool call", "tool step"]
    course.turn(names, f"{word} show README.md")
    course.restart()
    course.turn(["stopped"], "say hi")
    course.restart(is_killed=True)
    course.turn(["killed"], "say hi")
    course.turn(["more after kill"], "and once more", goes_on=True)
