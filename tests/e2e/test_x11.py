"""X11: code that lies in a model's folder is never run, whatever its files say of it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.live import Live, chat, run_omlx

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("asks_for_it", [False, True])
def test_x11_python_files_beside_weights(
    tiny_model: Path, tmp_path: Path, *, asks_for_it: bool
) -> None:
    folder, mark = tmp_path / "models" / "tiny", tmp_path / "mark"
    shutil.copytree(tiny_model, folder)
    for name in ("evil", "conftest", "sitecustomize", "__init__", "modeling_llama", "tokenizer"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write({name!r})\n")
    classes = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoTokenizer": "evil.T"}
    change(folder / "config.json", auto_map=classes)
    change(folder / "tokenizer_config.json", auto_map=classes, tokenizer_class="evil.T")
    if asks_for_it:
        change(folder / "config.json", model_file="evil.py")
    assert run_omlx("model", "list", "--model-dir", str(folder.parent), home=tmp_path / "home")
    args = ("--model-dir", str(folder.parent))
    with Live(*args, home=tmp_path / "home", wait=not asks_for_it) as live:
        code, answer = live.post("/v1/chat/completions", chat("tiny", "hi"))
        assert (code == 200) != asks_for_it, answer
    assert not mark.exists()
