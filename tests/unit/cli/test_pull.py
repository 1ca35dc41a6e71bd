"""How a pull is shown, and that `serve --demo` and `model pull demo` ask for one."""

import io
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from rich.console import Console

import omlx.cli.pull
from omlx.cli.pull import PlainReport, reporting
from omlx.cli.view.bars import Bars
from omlx.errors import ModelError
from omlx.models.demo import DEMO_ID, Progress, Stage
from tests.fakes.hub import COMMIT, FakeHub, model_files, serving
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_model import add_model
from tests.unit.cli.test_serve import FakeServer, server

__all__ = ["server"]


class FakePull:
    """Stands in for the pull itself: makes a folder that looks like the model."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.error: BaseException | None = None

    def __call__(self, models_dir: Path, *, progress: omlx.cli.pull.OnProgress) -> Path:
        self.folders.append(models_dir)
        progress(Progress(Stage.DOWNLOAD, 0, 1000))
        if self.error is not None:
            raise self.error
        progress(Progress(Stage.DOWNLOAD, 1000, 1000))
        folder = models_dir / DEMO_ID
        return folder if folder.exists() else add_model(folder)


@pytest.fixture
def pull(monkeypatch: pytest.MonkeyPatch) -> FakePull:
    fake = FakePull()
    monkeypatch.setattr(omlx.cli.pull, "pull_demo", fake)
    return fake


def test_plain_lines_come_at_quarters(capsys: pytest.CaptureFixture[str]) -> None:
    report = PlainReport()
    for done in range(0, 1001, 10):
        report(Progress(Stage.DOWNLOAD, done * 1000, 1_000_000))
    report(Progress(Stage.CONVERT, 0, 0))
    assert capsys.readouterr().err.splitlines() == [
        "download 0 B of 1.0 MB",
        "download 250.0 kB of 1.0 MB",
        "download 500.0 kB of 1.0 MB",
        "download 750.0 kB of 1.0 MB",
        "download 1.0 MB of 1.0 MB",
        "convert 0 B of 0 B",
    ]


def test_bars_show_each_stage() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with Bars(console) as bars:
        for stage in Stage:
            bars(Progress(stage, 0, 2_000_000))
            bars(Progress(stage, 1_000_000, 2_000_000))
    last = out.getvalue()
    assert all(stage.value in last for stage in Stage)
    assert "1.0/2.0 MB" in last


def test_stderr_that_is_no_terminal_gets_plain_lines() -> None:
    with reporting() as report:
        assert isinstance(report, PlainReport)


def test_model_pull_prints_the_folder(cli: Cli, home: Path, pull: FakePull) -> None:
    outcome = cli("model", "pull", "demo")
    assert (outcome.code, outcome.out) == (0, f"{home}/models/{DEMO_ID}\n")
    assert outcome.err.startswith("download 0 B of 1.0 kB\n")


def test_model_pull_goes_into_the_first_model_folder(
    cli: Cli, tmp_path: Path, pull: FakePull
) -> None:
    flags = ["--model-dir", str(tmp_path / "a"), "--model-dir", str(tmp_path / "b")]
    assert cli("model", "pull", "demo", *flags).code == 0
    assert pull.folders == [tmp_path / "a"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ModelError("no net", hint="pip download x"), 1), (KeyboardInterrupt(), 130)],
)
def test_a_pull_that_fails(cli: Cli, pull: FakePull, error: BaseException, code: int) -> None:
    pull.error = error
    outcome = cli("model", "pull", "demo")
    assert (outcome.code, outcome.out) == (code, "")
    assert "Traceback" not in outcome.err
    if code == 1:
        assert outcome.err.endswith("error: no net\nhint: pip download x\n")


def test_serve_demo_gets_it_and_serves_it_alone(
    cli: Cli, home: Path, pull: FakePull, server: FakeServer
) -> None:
    add_model(home / "models" / "another")
    assert cli("serve", "--demo").code == 0
    assert pull.folders == [home / "models"]
    assert server.ids == [DEMO_ID]


def test_serve_demo_also_serves_folders_that_were_named(
    cli: Cli, tmp_path: Path, pull: FakePull, server: FakeServer
) -> None:
    add_model(tmp_path / "mine" / "another")
    assert cli("serve", "--demo", "--model-dir", str(tmp_path / "mine")).code == 0
    assert server.ids == [DEMO_ID, "another"]


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub(repos={"org/name": model_files()})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
    huggingface_hub.close_session()


def test_model_pull_from_a_hub(cli: Cli, home: Path, fake_hub: FakeHub) -> None:
    outcome = cli("model", "pull", "org/name")
    assert (outcome.code, outcome.out) == (0, f"{home}/models/org/name\n")
    lines = outcome.err.splitlines()
    assert lines[0] == "download 0 B of 1.0 MB"
    assert lines[-2:] == [
        "download 1.0 MB of 1.0 MB",
        f"org/name at commit {COMMIT[:12]}: fetched 1.0 MB",
    ]
    again = cli("model", "pull", "org/name")
    assert again.err == f"org/name at commit {COMMIT[:12]}: up to date\n"
    assert "name" in cli("model", "list").out


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("demi", 2, "error: 'demi' names no model: expected OWNER/NAME"),
        ("org/none", 1, "error: there is no model org/none at http://127.0.0.1:"),
        ("org/name@v7", 1, "error: org/name has no revision 'v7'"),
    ],
)
def test_model_pull_of_what_is_not_there(
    cli: Cli, fake_hub: FakeHub, name: str, code: int, said: str
) -> None:
    outcome = cli("model", "pull", name)
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.startswith(said)
    assert "hint: " in outcome.err


def test_an_architecture_is_looked_at_before_the_weights(cli: Cli, fake_hub: FakeHub) -> None:
    fake_hub.repos["org/name"]["config.json"] = b'{"model_type": "whisper"}'
    outcome = cli("model", "pull", "org/name")
    assert outcome.code == 1
    assert "does not know its architecture, 'whisper'" in outcome.err
    assert fake_hub.asked_for("model.safetensors") == []
    assert cli("model", "pull", "org/name", "--any-architecture").code == 0


def test_a_model_that_is_too_large_to_serve_here_is_a_warning(
    cli: Cli, fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "can't be served here" not in cli("model", "pull", "org/name").err
    fake_hub.commits["org/name", "main"] = COMMIT[::-1]
    fake_hub.said_sizes["model.safetensors"] = 900 * 10**12
    outcome = cli("model", "pull", "org/name")
    assert outcome.err.startswith("warning: it has 900.0 TB of weights, and engine.memory_limit")
    assert "error: there is no room for org/name in " in outcome.err


def test_model_pull_into_the_hub_cache(cli: Cli, tmp_path: Path, fake_hub: FakeHub) -> None:
    outcome = cli("model", "pull", "org/name", "--into-hub-cache")
    folder = tmp_path / "hub-cache" / "models--org--name" / "snapshots" / COMMIT
    assert (outcome.code, outcome.out) == (0, f"{folder}\n")
    assert "hub cache" in cli("model", "list").out
