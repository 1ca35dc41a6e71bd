"""A command line to call, with its output taken apart."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from omlx.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's folder, as OMLX_HOME has it; not there yet."""
    return tmp_path / "omlx-home"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls omlx in an empty folder of its own, 80 columns wide."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("OMLX_TEST_MODELS", raising=False)

    def call(*args: str) -> Outcome:
        code = run(args)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
