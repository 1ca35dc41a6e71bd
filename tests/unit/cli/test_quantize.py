"""`omlx quantize` and `omlx model import` without their processes: options, names, output."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from omlx.cli.quantize import PlainReport
from omlx.cli.view.quantize import TaskBar, to_json, to_text
from tests.unit.cli.conftest import Cli
from tests.unit.models import gguf_writer

MADE: dict[str, Any] = {
    "plan": {
        "formats": {"model.embed_tokens": "6/64", "model.layers.0.mlp.gate": "kept"},
        "nbytes": 70_123_456, "bits": 4.498, "predicted_kl": 0.0712,
        "notes": ["--bits 4.5 leaves no room for the usual floor of embeddings"],
    },
    "measured_kl": 0.0801, "dtype": "float16", "num_values": 134_515_008,
    "groups": [["embed_tokens", "6/64", 23_000_000.0, 0.0123], ["gate", "kept", 4096.0, 0.0]],
    "is_resumed": False,
}  # fmt: skip


class Task:
    """Stands for the process; keeps what it was asked."""

    def __init__(self) -> None:
        self.spec: Mapping[str, Any] = {}

    def __call__(self, name: str, spec: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        assert name == "omlx.models.quantize"
        self.spec = spec
        return MADE


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    found = Task()
    monkeypatch.setattr("omlx.engine.task.run_task", found)
    return found


@pytest.fixture
def model(home: Path) -> Path:
    folder = home / "models" / "big"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("args", "goal", "name"),
    [
        (["--bits", "4.5"], {"bits": 4.5, "kl": None}, "big-4.5bit"),
        (["--size", "4GB"], {"size_bytes": 4_000_000_000}, "big-4000000000B"),
        (["--quality", "0.05"], {"bits": None, "kl": 0.05}, "big-kl0.05"),
    ],
)
def test_the_result_lies_beside_the_model_and_says_what_it_is(
    cli: Cli, task: Task, model: Path, args: list[str], goal: dict[str, Any], name: str
) -> None:
    outcome = cli("quantize", "big", *args)
    assert outcome.code == 0, outcome.err
    assert task.spec["goal"] == goal
    assert task.spec["out"] == str(model.parent / name)
    assert (task.spec["dtype"], task.spec["tokens"], task.spec["seed"]) == (None, 8192, 0)
    assert outcome.out.splitlines()[-1] == str(model.parent / name)


def test_what_was_made_is_told() -> None:
    text = to_text(MADE, Path("/x/out"))
    assert text.splitlines() == [
        "matrices      format     size  predicted KL",
        "embed_tokens  6/64    23.0 MB       0.01230",
        "gate          kept     4.1 kB       0.00000",
        "",
        "4.50 bits a weight, 70.1 MB, predicted KL 0.0712 nats a token, scales in float16",
        "measured on the calibration text: KL 0.0801 nats a token",
        "note: --bits 4.5 leaves no room for the usual floor of embeddings",
        "/x/out",
    ]
    planned = to_text({**MADE, "measured_kl": None}, None)
    assert "measured on" not in planned
    document = json.loads(to_json(MADE, None))
    assert document["path"] is None
    assert document["formats"]["model.embed_tokens"] == "6/64"
    assert (document["bytes"], document["weights"]) == (70_123_456, 134_515_008)


def test_progress_is_a_line_at_each_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    report = PlainReport()
    for done in range(9):
        report(done, 8, "round layers")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"round layers {percent} %" for percent in (0, 25, 50, 75, 100)]


def test_a_stage_of_another_length_begins_anew() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with TaskBar("quantize", console) as bar:
        bar(60, 62, "measure layers")
        bar(1, 31, "round layers")
        (task,) = bar._progress.tasks
        assert (task.completed, task.total, task.description) == (1, 31, "round layers")


def test_an_interrupt_says_that_work_is_kept(
    cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omlx.engine.task.run_task", interrupted)
    outcome = cli("quantize", "big", "--bits", "4")
    assert outcome.code == 130
    assert "the same command goes on from there" in outcome.err


def test_an_import_with_bits_goes_through_floats(
    cli: Cli, task: Task, home: Path, tmp_path: Path
) -> None:
    source = gguf_writer.llama(tmp_path / "m.gguf")
    outcome = cli("model", "import", str(source), "--bits", "4", "--dtype", "bfloat16")
    assert outcome.code == 0, outcome.err
    assert task.spec["model"] == str(home / "models" / ".m.floats")
    assert (task.spec["out"], task.spec["dtype"]) == (str(home / "models" / "m"), "bfloat16")
    assert not (home / "models" / ".m.floats").exists()


def test_what_has_no_form_in_mlx_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.models.gguf.kept_in_floats", lambda _: {"Q6_K": 3, "Q3_K": 1})
    outcome = cli("model", "import", str(gguf_writer.llama(tmp_path / "m.gguf")))
    assert outcome.code == 0
    assert "stay in floats: 1 of Q3_K, 3 of Q6_K; --bits rounds them" in outcome.err


def test_floats_and_bits_exclude_each_other(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("model", "import", str(tmp_path / "m.gguf"), "--floats", "--bits", "4")
    assert outcome.code == 2
    assert "--floats and --bits exclude each other" in outcome.err
