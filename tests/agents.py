"""Real coding agents, headless: installed outside the repository, each with a home of its own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.agent import SECRET

REPOSITORY = Path(__file__).resolve().parents[1]
_INSTALL_S, _RUN_S = 1800, 300


@dataclass(frozen=True, slots=True)
class Agent:
    """How to make one agent answer a prompt and end; `more` goes on with the last conversation.

    "{session}" in these is a name for the conversation.
    """

    name: str
    first: Sequence[str]
    more: Sequence[str]
    # What comes after the prompt.
    last: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    # What its first prompt must hold for the model to do what the agent lets it do.
    word: str = "TOOLTEST"


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
        Agent("openclaw", _OPENCLAW, _OPENCLAW),
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
        Agent("cline", (), ("--continue",)),
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


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run of an agent ended and what it printed."""

    code: int
    stdout: str
    stderr: str


def clients_dir() -> Path:
    """Where scripts/clients puts what it installs."""
    named = os.environ.get("OMLX_TEST_CLIENTS")
    return Path(named) if named else Path.home() / ".cache" / "omlx-tests" / "clients"


def install(name: str) -> str:
    """Install an agent where it is not yet; its name and version."""
    done = subprocess.run(
        [REPOSITORY / "scripts" / "clients", name],
        capture_output=True, text=True, timeout=_INSTALL_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Desk:
    """A home and a project of an agent's own, from which it is launched."""

    def __init__(self, agent: Agent, folder: Path, omlx_home: Path, *, model: str) -> None:
        self.agent = agent
        self.home, self.project = folder / "home", folder / "project"
        self.home.mkdir(parents=True)
        self.project.mkdir()
        (self.project / "README.md").write_text(f"{SECRET}\n")
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
        args = [arg.format(session=f"s{self._num_sessions}") for arg in given]
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
                process.communicate()
        return Ran(process.returncode, stdout, stderr)

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
