"""`omlx model list` and `omlx model pull`."""

import json
from pathlib import Path

from tests.unit.cli.conftest import Cli


def add_model(folder: Path, **config: object) -> Path:
    """A folder that looks like a model: its config, and weights of no tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    return folder


def test_no_models(cli: Cli, home: Path) -> None:
    outcome = cli("model", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(f"no models in {home}/models\nhint: omlx model pull demo")


def test_list(cli: Cli, home: Path) -> None:
    tiny = add_model(home / "models" / "tiny", max_position_embeddings=4096, torch_dtype="float32")
    other = add_model(
        home / "models" / "a-model-with-a-rather-long-name-that-nobody-should-cut-in-a-table",
        quantization={"bits": 4, "group_size": 64},
    )
    (home / "models" / "broken").mkdir()
    (home / "models" / "broken" / "config.json").write_text("{")
    (home / "models" / "broken" / "model.safetensors").write_text("")
    outcome = cli("model", "list")
    rows = [line.split("  ") for line in outcome.out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["model", "type", "window", "weights", "size", "folder"],
        [other.name, "llama", "-", "4-bit affine, group 64", "10 B", str(other)],
        ["tiny", "llama", "4,096", "float32", "10 B", str(tiny)],
    ]
    assert outcome.err.startswith(f"warning: skipped {home}/models/broken: ")
    assert outcome.err.count("\n") == 1


def test_list_json(cli: Cli, tmp_path: Path) -> None:
    folder = add_model(tmp_path / "m" / "tiny", torch_dtype="bfloat16")
    found = json.loads(cli("model", "list", "--json", "--model-dir", str(tmp_path / "m")).out)
    assert found == {
        "models": [
            {
                "id": "tiny",
                "path": str(folder),
                "model_type": "llama",
                "context_window": None,
                "weight_bytes": 10,
                "dtype": "bfloat16",
                "quantization": None,
            }
        ],
        "skipped": [],
    }


def test_a_model_folder_that_was_named_must_be_there(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in (("none", "No such file or directory"), ("file", "Not a directory")):
        outcome = cli("model", "list", "--model-dir", str(tmp_path / name))
        assert outcome.code == 1
        assert outcome.err == (
            f"error: the model folder {tmp_path / name} cannot be read: {reason}\n"
        )
