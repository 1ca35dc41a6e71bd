"""Real coding agents, headless: installed outside the repository, each with a home of its own."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients import clients_dir
from tests.fakes.agent import SECRET

REPOSITORY = Path(__file__).resolve().parents[1]
_RUN_S = 600


@dataclass(frozen=True, slots=True)
class Agent:
    """How to make one agent answer a prompt and end; `more` goes on with the last conversation.

    "{session}" in these is a name for the conversation: the agent's own, of the newest entry in the
    folder `sessions` of its home, where it takes no other.
    """

    name: str
    first: Sequence[str]
    more: Sequence[str]
    # What comes after the prompt.
    last: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    # What its first prompt must hold for the model to do what the agent lets it do.
    word: str = "TOOLTEST"
    sessions: str = ""
    # It goes on with a conversation in a terminal only.
    is_typed: bool = False
    # Where its tools run, below its home; the project else.
    workspace: str = ""


_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_COPILOT = ("--allow-all-tools", "--allow-all-paths")
_OPENCLAW = (
    "agent", "--local", "--agent", "main", "--session-id", "{session}", "--json", "--message",
)  # fmt: skip
_AIDER = ("--yes-always", "--no-gitignore", "--no-auto-commits", "--no-show-model-warnings")
AGENTS = {
    agent.name: agent
    for agent in (
        Agent(
            "claude-code",
            ("--dangerously-skip-permissions", "-p"),
            ("--dangerously-skip-permissions", "--continue", "-p"),
            env={"IS_SANDBOX": "1"},  # it wants to hear that from root
        ),
        Agent("codex", ("exec", *_CODEX), ("exec", "resume", "--last", *_CODEX)),
        Agent("opencode", ("run", "--auto"), ("run", "--auto", "--continue")),
        Agent("copilot", (*_COPILOT, "-p"), (*_COPILOT, "--continue", "-p")),
        Agent("openclaw", _OPENCLAW, _OPENCLAW, workspace=".openclaw/workspace"),
        Agent("pi", ("-p",), ("-p", "--continue")),
        Agent(
            "vibe",
            ("--trust", "--auto-approve", "-p"),
            ("--trust", "--auto-approve", "--continue", "-p"),
        ),
        Agent(
            "hermes",
            ("chat", "-Q", "--yolo", "-q"),
            ("chat", "-Q", "--yolo", "--continue", "-q"),
        ),
        Agent("qwen-code", ("-y", "-p"), ("-y", "--continue", "-p")),
        Agent("cline", (), ("--id", "{session}"), sessions=".cline/data/sessions", is_typed=True),
        Agent("kilo", ("run", "--auto"), ("run", "--auto", "--continue")),
        Agent("continue", ("--auto", "-p"), ("--auto", "--resume", "-p")),
        Agent(
            "aider",
            (*_AIDER, "README.md", "--message"),
            (*_AIDER, "--restore-chat-history", "README.md", "--message"),
            word="EDITTEST",
        ),
    )
}


_DRAWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run of an agent ended and what it printed."""

    code: int
    stdout: str
    stderr: str

    def says(self, text: str) -> bool:
        """Whether it printed this, wherever it broke the line and however it drew the words."""
        plain = _DRAWN.sub(" ", self.stdout)
        return text in " ".join(plain.split())


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self._main, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        self._process = subprocess.Popen(
            command, cwd=folder, env=dict(env), stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inner)
        self.text = ""
        self.code = 0

    def read(self, seconds: float) -> bool:
        """Read what comes within so long, and answer what it asks of a terminal."""
        ready, _, _ = select.select([self._main], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._main, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        for asked, answer in _QUERIES.items():
            if asked in data:
                os.write(self._main, answer)
        return bool(data)

    def wait_for(self, text: str, timeout_s: float = 120.0) -> None:
        """Read until this text has come."""
        deadline = time.monotonic() + timeout_s
        while text not in self.text and time.monotonic() < deadline:
            self.read(0.5)

    def settle(self, quiet_s: float = 3.0, most_s: float = 60.0) -> None:
        """Read until nothing has come for a while."""
        deadline = time.monotonic() + most_s
        while self.read(quiet_s) and time.monotonic() < deadline:
            pass

    def write(self, text: str) -> None:
        os.write(self._main, text.encode())

    def leave(self) -> None:
        """Have the program end as a user would, by Ctrl-C."""
        for _ in range(4):
            if self._process.poll() is not None:
                break
            self.write("\x03")
            self.settle(1.0, 5.0)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.code = self._process.wait()
        os.close(self._main)


_QUERIES = {
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[c": b"\x1b[?62;c",
    b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}


class Desk:
    """A home and a project of an agent's own, from which it is launched."""

    def __init__(self, agent: Agent, folder: Path, omlx_home: Path, *, model: str) -> None:
        self.agent = agent
        self.home, self.project = folder / "home", folder / "project"
        self.home.mkdir(parents=True)
        self.project.mkdir()
        works_in = self.home / agent.workspace if agent.workspace else self.project
        works_in.mkdir(parents=True, exist_ok=True)
        (works_in / "README.md").write_text(f"{SECRET}\n")
        self._omlx_home = omlx_home
        self._model = model
        self._num_sessions = 0

    def ask(
        self, text: str, *, goes_on: bool = False, options: Sequence[str] = (), **env: str
    ) -> Ran:
        """Launch the agent with a prompt and wait for its end; `options` are those of launch."""
        agent = self.agent
        self._num_sessions += not goes_on
        given = agent.more if goes_on else agent.first
        args = [arg.format(session=self._session()) for arg in given]
        args += [text, *agent.last]
        command = ["launch", agent.name, "--model", self._model, *options, "--", *args]
        process = subprocess.Popen(
            [sys.executable, "-m", "omlx", *command],
            cwd=self.project,
            env={**self._env(), **agent.env, **env},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=_RUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):  # what it left may hold the pipes
                    process.communicate(timeout=5)
        return Ran(process.returncode, stdout, stderr)

    def type(self, text: str, is_over: Callable[[], bool], *, timeout_s: float = 120) -> Ran:
        """Go on with the last conversation in a terminal until `is_over`, then leave it."""
        args = [arg.format(session=self._session()) for arg in self.agent.more]
        command = ["launch", self.agent.name, "--model", self._model, "--", *args]
        env = {**self._env(), **self.agent.env, "TERM": "xterm-256color"}
        with Terminal([sys.executable, "-m", "omlx", *command], self.project, env) as terminal:
            terminal.wait_for("\x1b[?1049h")  # it has taken the terminal over
            terminal.settle()
            terminal.write(text)
            terminal.settle()
            terminal.write("\r")
            deadline = time.monotonic() + timeout_s
            while not is_over() and time.monotonic() < deadline:
                terminal.read(0.2)
            terminal.settle()
            terminal.leave()
        return Ran(terminal.code, terminal.text, "")

    def _session(self) -> str:
        folder = self.home / self.agent.sessions
        if not self.agent.sessions or not folder.is_dir():
            return f"s{self._num_sessions}"
        return max(folder.iterdir(), key=lambda path: path.stat().st_mtime).stem

    def _env(self) -> dict[str, str]:
        path = f"{clients_dir() / 'bin'}:{Path(_node()).parent}:/usr/bin:/bin"
        python_path = os.environ.get("PYTHONPATH", str(REPOSITORY))
        return {
            "PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "dumb",
            "OMLX_HOME": str(self._omlx_home), "PYTHONPATH": python_path,
        }  # fmt: skip


def _node() -> str:
    """The Node that the agents want, if there is one; the machine's else."""
    linked = clients_dir() / "bin" / "node"
    return str(linked.resolve()) if linked.exists() else shutil.which("node") or "/usr/bin/node"
