"""The report of an accuracy run: what is asked of the processes, and what becomes of the answers.

Knows nothing about mlx: what the processes answer is made up here.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx.bench import accuracy as module
from omlx.bench.accuracy import Options, accuracy, check, held_out_texts, named_texts
from omlx.bench.failure import BenchError
from omlx.bench.items import Choice, Code, Items
from omlx.bench.step import Step

FIGURES = {"loss": 2.0, "perplexity": 7.4, "kl": 0.25, "kl_p99": 1.0, "kl_max": 3.0,
           "reverse_kl": 0.3, "top1": 0.9}  # fmt: skip
CODE = Code("add", "def add(a, b):\n", "assert add(1, 2) == 3", ("\n\n",), 20)
CHOICE = Choice("sky", "The sky is", (" green", " blue"), 1)


class Processes:
    """Stands for the processes; keeps what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(
        self,
        name: str,
        spec: Mapping[str, Any],
        *,
        blas: str,
        progress: Callable[[int, int, str], None],
    ) -> dict[str, Any]:
        self.asked.append((name, spec))
        if name == "omlx.models.questions":
            return {
                "choices": {"right": [True], "accuracy": 1.0, "accuracy_by_length": 0.5},
                "codes": ["    return a + b" for _ in spec["codes"]],
            }
        for done in range(101):
            progress(done, 100, str(spec["stage"]))
        keys = FIGURES if spec.get("against") else ("loss", "perplexity")
        figures = {key: FIGURES[key] for key in keys}
        texts = [text for text, _ in spec["texts"]]
        return {
            "num_vocab": 512, "weight_bytes": 4096, "tokens": 99, "device": "cpu",
            "float32": True, "overall": figures,
            "texts": {text: {"tokens": 49.0, **figures} for text in texts},
            "contexts": [{"text": text, "tokens": 49, **figures} for text in texts],
        }  # fmt: skip


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    found = Processes()
    monkeypatch.setattr(module, "run_task", found)
    return found


def test_the_texts_of_our_own_are_there() -> None:
    texts = held_out_texts()
    assert [name for name, _ in texts] == ["prose", "code", "languages", "tools"]
    assert all(len(path.read_text("utf-8")) > 5000 for _, path in texts)


def test_a_model_alone_has_a_loss_and_a_perplexity(processes: Processes) -> None:
    report = accuracy(Options(Path("m"), "model-id", tokens=300, context=77))
    ((name, spec),) = processes.asked
    assert (name, spec["model"], spec["against"]) == ("omlx.models.measure", "m", None)
    assert (spec["tokens"], spec["context"], len(spec["texts"])) == (300, 77, 4)
    assert {measure.name for measure in report.measures} == {"loss", "perplexity", "context_loss"}
    (loss,) = report.find("loss", case={"text": "all"})
    assert (loss.samples, loss.side, loss.case["tokens"]) == ((2.0,), "model", 99)


def test_a_reference_comes_first_and_is_compared_with(processes: Processes) -> None:
    options = Options(Path("m"), "m-id", reference=Path("r"), reference_id="r-id")
    report = accuracy(options)
    (_, first), (_, second) = processes.asked
    assert (first["model"], second["model"]) == ("r", "m")
    assert first["record"] == second["against"]
    assert not Path(str(first["record"])).parent.exists()
    (kl,) = report.find("kl", case={"text": "code"})
    assert (kl.samples, kl.unit, kl.side) == ((0.25,), "nats/token", "model")
    assert report.sides["reference"]["model"] == "r-id"
    assert any("KL(reference || model)" in note for note in report.notes)
    assert any("float32" in note for note in report.notes)


def test_few_steps_are_told(processes: Processes) -> None:
    steps: list[Step] = []
    accuracy(Options(Path("m"), "m-id"), steps.append)
    assert 8 <= len(steps) <= 10
    assert steps[-1] == Step("model", 100, 100)


def test_questions_become_shares_and_outcomes(processes: Processes) -> None:
    bad = Code("bad", "def bad(:\n", "pass", ("\n",), 9)
    items = Items((CHOICE,), (CODE, bad))
    report = accuracy(Options(Path("m"), "m-id", items=items, allow_code=True))
    assert report.find("choice_accuracy")[0].samples == (1.0,)
    assert report.find("choice_accuracy_by_length")[0].samples == (0.5,)
    assert report.find("code_passed")[0].samples == (0.5,)
    assert report.sides["model"]["items"] == {"sky": "right", "add": "passed", "bad": "failed"}
    assert any("ran what the model wrote" in note for note in report.notes)


def test_code_runs_only_where_it_is_allowed(processes: Processes) -> None:
    with pytest.raises(BenchError, match="1 code items, which run what a model writes") as caught:
        accuracy(Options(Path("m"), "m-id", items=Items((), (CODE,))))
    assert "--allow-code" in caught.value.hint
    assert not processes.asked


def test_a_missing_extra_is_said_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match="needs lm-eval") as caught:
        check(Options(Path("m"), "m-id", items=Items((CHOICE,), ())))
    assert "omlx[eval]" in caught.value.hint


def test_files_of_the_same_name_are_told_apart() -> None:
    paths = [Path("a/t.txt"), Path("b/t.txt"), Path("u.txt")]
    assert [name for name, _ in named_texts(paths)] == ["t.txt", "t.txt #2", "u.txt"]
