"""Files of a model are data: nothing in its folder is run."""

import json
import os
import pickle
from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.text import TextModel
from tests.fakes.model_folder import write_model_folder


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_case_x11_python_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = write_model_folder(tmp_path)
    code = f"import os\nos.mkdir({str(mark)!r})\n"
    for name in ("modeling_fake.py", "tokenization_fake.py", "__init__.py", "setup.py"):
        (folder / name).write_text(code)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    auto = {"AutoTokenizer": ["tokenization_fake.Tok", None], "AutoModel": "modeling_fake.Model"}
    path.write_text(json.dumps({**config, "auto_map": auto}))
    assert TextModel.load(folder).encode("a")
    assert not mark.exists()


def test_case_x11_a_tokenizer_that_only_its_own_code_can_read_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = write_model_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenization_fake.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    auto = {"AutoTokenizer": ["tokenization_fake.Tok", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto}))
    with pytest.raises(ModelError):
        TextModel.load(folder)
    assert not mark.exists()


def test_case_x11_a_pickle_is_no_tokenizer(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = write_model_folder(tmp_path)
    (folder / "tokenizer.json").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ModelError):
        TextModel.load(folder)
    assert not mark.exists()
