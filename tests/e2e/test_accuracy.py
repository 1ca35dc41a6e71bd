"""`omlx bench accuracy` as a process, on the demo model and on tiny ones."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from tests.fakes import tiny
from tests.live import run_omlx
from tests.models import demo_model, tiny_served_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def figures(document: dict[str, Any], text: str = "all") -> dict[str, float]:
    return {
        one["name"]: one["samples"][0]
        for one in document["measures"]
        if one["side"] == "model" and one["case"].get("text") == text
    }


def measured(tmp_path: Path, *args: str) -> dict[str, Any]:
    done = run_omlx("bench", "accuracy", "--json", *args, home=tmp_path, timeout_s=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_demo_model_agrees_with_itself(tmp_path: Path) -> None:
    demo = str(demo_model())
    page = tmp_path / "page.html"
    args = ["--model", demo, "--reference", demo, "--tokens", "160", "--html", str(page)]
    found = figures(measured(tmp_path, *args))
    assert (found["kl"], found["kl_max"], found["reverse_kl"], found["top1"]) == (0, 0, 0, 1)
    assert 5 < found["perplexity"] < 500
    assert "KL(reference || model)" in page.read_text("utf-8")


def test_another_model_does_not_and_twice_is_the_same(tmp_path: Path) -> None:
    folder = tiny_served_model(tmp_path)
    model = tiny.build_config(json.loads((folder / "config.json").read_text()), seed=1)
    other = tmp_path / "other"
    tiny.save(model, other, json.loads((folder / "config.json").read_text()))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((folder / name).read_bytes())
    text = tmp_path / "text.txt"
    text.write_text("The lamp in the hall was never lit before nine. " * 20)
    args = ["--model", str(folder), "--reference", str(other), "--text", str(text)]
    first, second = (figures(measured(tmp_path, *args)) for _ in range(2))
    assert first == second
    assert first["kl"] > 0
    assert first["top1"] < 1
    mx.clear_cache()


def test_questions_are_answered(tmp_path: Path) -> None:
    items = [
        {"kind": "choice", "id": "paris", "question": "The capital of France is",
         "choices": [" Berlin", " Paris", " Madrid"], "answer": 1},
        {"kind": "choice", "id": "days", "question": "Monday, Tuesday,",
         "choices": [" Wednesday", " banana {{x}}"], "answer": 0},
        {"kind": "code", "id": "add", "prompt": "def two():\n    return",
         "tests": "assert two() is not None", "max_tokens": 8, "stop": ["\n"]},
    ]  # fmt: skip
    path = tmp_path / "items.jsonl"
    path.write_text("\n".join(map(json.dumps, items)))
    args = ["--model", str(demo_model()), "--tokens", "8", "--tasks", str(path)]
    refused = run_omlx("bench", "accuracy", *args, home=tmp_path)
    assert refused.returncode == 1
    assert "--allow-code" in refused.stderr
    document = measured(tmp_path, *args, "--allow-code")
    outcomes = document["sides"]["model"]["items"]
    assert (outcomes["paris"], outcomes["days"]) == ("right", "right")
    assert outcomes["add"] in ("passed", "failed")
    shares = {one["name"]: one["samples"][0] for one in document["measures"]}
    assert shares["choice_accuracy"] == 1.0
    assert any("ran what the model wrote" in note for note in document["notes"])


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"", b"abc\0"])
def test_what_is_no_text_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    text = tmp_path / "odd"
    text.write_bytes(data)
    folder = tiny_served_model(tmp_path)
    done = run_omlx("bench", "accuracy", "--model", str(folder), "--text", str(text), home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: --text: ")
    assert "Traceback" not in done.stderr
