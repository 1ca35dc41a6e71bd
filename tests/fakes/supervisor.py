"""A supervisor of services, and programs that drive one, which a test makes up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omlx.errors import ServerError
from omlx.launch.service.seal import sealed
from omlx.launch.service.spec import Spec, State, Word, Written
from omlx.launch.service.tool import Done
from omlx.launch.service.unit import read_unit, unit_text


@dataclass
class FakeSupervisor:
    """Keeps a unit in a folder; `on_start` makes the state that a start leads to."""

    path: Path
    kind: str = "fake unit"
    others: tuple[Path, ...] = ()
    calls: list[str] = field(default_factory=list)
    now: State = field(default_factory=lambda: State(Word.STOPPED))
    on_start: Callable[[], State] = lambda: State(Word.RUNNING, 1)
    is_absent: bool = False
    refuses: str = ""  # the call that fails

    def text(self, spec: Spec) -> bytes:
        return sealed(unit_text(spec, version=None).encode())

    def read(self, data: bytes) -> Written:
        return read_unit(data.decode())

    def check(self) -> None:
        if self.is_absent:
            raise ServerError("nobody supervises here", hint="omlx start")

    def load(self) -> None:
        self._call("load")

    def unload(self) -> None:
        self._call("unload")
        self.now = State(Word.STOPPED)

    def forget(self) -> None:
        self._call("forget")

    def start(self) -> None:
        self._call("start")
        self.now = self.on_start()

    def stop(self) -> None:
        self._call("stop")
        self.now = State(Word.STOPPED, at_login=True)

    def restart(self) -> None:
        self._call("restart")
        self.now = self.on_start()

    def state(self) -> State:
        self.check()
        return self.now

    def notes(self) -> Sequence[str]:
        return ("it is made up",)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.refuses:
            raise ServerError(f"{name} is refused")


class FakeTool:
    """Answers calls of programs by the words that they begin with; all else succeeds."""

    def __init__(self, answers: dict[str, Done | Callable[[], Done]] | None = None) -> None:
        self.answers = answers or {}
        self.calls: list[str] = []

    def __call__(self, words: Sequence[str], timeout_s: float) -> Done:
        line = " ".join(words)
        self.calls.append(line)
        found = [key for key in self.answers if line.startswith(key)]
        if not found:
            return Done(0)
        answer = self.answers[max(found, key=len)]
        return answer if isinstance(answer, Done) else answer()
