"""`omlx model list` and `omlx model pull`."""

import json
import os
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
        ["model", "type", "window", "weights", "size", "from", "folder"],
        [other.name, "llama", "-", "4-bit affine, group 64", "10 B", "folder", str(other)],
        ["tiny", "llama", "4,096", "float32", "10 B", "folder", str(tiny)],
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
                "source": "folder",
                "revision": None,
                "model_type": "llama",
                "context_window": None,
                "weight_bytes": 10,
                "dtype": "bfloat16",
                "quantization": None,
                "token_bytes": None,
            }
        ],
        "names": [],
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


SHAPE = {
    "max_position_embeddings": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "head_dim": 100,
    "torch_dtype": "float16",
}


def test_what_fits(cli: Cli, home: Path) -> None:
    add_model(home / "models" / "small", **SHAPE)
    large = add_model(home / "models" / "large", **SHAPE)
    os.truncate(large / "model.safetensors", 199_000_000)
    huge = add_model(home / "models" / "huge", **SHAPE)
    os.truncate(huge / "model.safetensors", 10**12)
    outcome = cli("model", "list", "--fits", "--memory-limit", "200MB")
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines()}
    assert rows["model"][-5:] == ["needs", "fits", "context", "from", "folder"]
    # A token takes 800 bytes, the window 3.3 MB.
    assert rows["small"][-6:-2] == ["3.3", "MB", "yes", "4,096"]
    assert rows["large"][-5:-2] == ["MB", "no", "1,250"]
    assert rows["huge"][-5:-2] == ["TB", "no", "0"]
    assert "models and caches may take 200.0 MB together" in outcome.out
    found = json.loads(
        cli("model", "list", "--context", "1000", "--memory-limit", "200MB", "--json").out
    )
    assert [model["fit"]["fits"] for model in found["models"]] == [False, True, True]
    assert found["models"][1]["fit"] == {
        "fits": True,
        "context": 1000,
        "needed_bytes": 199_800_000,
        "ceiling_bytes": 200_000_000,
        "max_context": 1250,
    }
    assert found["models"][1]["token_bytes"] == 800


def test_profiles_and_aliases_are_listed(cli: Cli, home: Path) -> None:
    add_model(home / "models" / "tiny")
    (home / "config.toml").write_text(
        "[models.alias]\nquick = 'tiny:exact'\nlost = 'tinny'\n"
        "[model.'t*'.profile.exact]\nsampling.temperature = 0.0\n"
    )
    outcome = cli("model", "list")
    assert [line.split() for line in outcome.out.splitlines()[2:]] == [
        ["tiny:exact", "=", "tiny"],
        ["quick", "=", "tiny:exact"],
    ]
    assert outcome.err == (
        "warning: models.alias: 'lost' stands for 'tinny', which is no model here "
        "(did you mean 'tiny'?)\n"
    )
    found = json.loads(cli("model", "list", "--json").out)
    assert found["names"] == [
        {"name": "tiny:exact", "model": "tiny"},
        {"name": "quick", "model": "tiny:exact"},
    ]


def test_a_circle_of_aliases(cli: Cli, home: Path) -> None:
    add_model(home / "models" / "tiny")
    outcome = cli("model", "list", "--alias", "a=b", "--alias", "b=a")
    assert outcome.code == 1
    assert outcome.err.startswith("error: models.alias goes in a circle: a = b = a\n")


def test_models_of_the_hub_cache(cli: Cli, tmp_path: Path) -> None:
    cache = tmp_path / "hub-cache"
    add_model(cache / "models--org--cached" / "snapshots" / "abc")
    add_model(cache / "models--org--speech" / "snapshots" / "abc", model_type="whisper")
    found = json.loads(cli("model", "list", "--json").out)
    assert [(m["id"], m["source"], m["revision"]) for m in found["models"]] == [
        ("cached", "hub cache", "abc")
    ]
    assert found["skipped"] == []
    assert json.loads(cli("model", "list", "--json", "--no-hub-cache").out)["models"] == []


def test_an_architecture_that_nobody_knows(cli: Cli, home: Path) -> None:
    add_model(home / "models" / "odd", model_type="whisper")
    outcome = cli("model", "list")
    assert outcome.out == ""
    assert "does not know its architecture, 'whisper'" in outcome.err
