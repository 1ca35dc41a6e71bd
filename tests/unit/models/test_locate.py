"""Models below directories: found, named, described, or skipped with a reason.

Knows nothing about loading them.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from omlx.models.locate import DEMO_ID, Discovery, Source, discover, resolve
from tests.unit.models.tiny import write_json

CONFIG = {"model_type": "llama", "max_position_embeddings": 512, "torch_dtype": "bfloat16"}


def model(folder: Path, config: object = CONFIG, *, weights: int = 10) -> Path:
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    (folder / "model.safetensors").write_bytes(bytes(weights))
    return folder


def ids(found: Discovery) -> list[str]:
    return [entry.id for entry in found.models]


def test_models_at_any_depth_and_the_directory_itself(tmp_path: Path) -> None:
    model(tmp_path / "one" / "b")
    model(tmp_path / "one" / "org" / "deep" / "a")
    model(tmp_path / "two")
    assert ids(discover([tmp_path / "one", tmp_path / "two"])) == ["a", "b", "two"]


def test_an_entry_describes_its_model(tmp_path: Path) -> None:
    quantization = {"bits": 4, "group_size": 64, "mode": "affine"}
    model(tmp_path / "m", {**CONFIG, "quantization": quantization})
    (tmp_path / "m" / "more.safetensors").write_bytes(bytes(5))
    (entry,) = discover([tmp_path]).models
    assert (entry.id, entry.path) == ("m", tmp_path / "m")
    assert (entry.model_type, entry.context_window) == ("llama", 512)
    assert (entry.weight_bytes, entry.dtype) == (15, "bfloat16")
    assert entry.quantization == "4-bit affine, group 64"


@pytest.mark.parametrize(
    ("config", "dtype", "quantization"),
    [
        ({"dtype": "float16"}, "float16", None),
        ({"text_config": {"torch_dtype": "torch.float32"}}, "float32", None),
        ({"quantization": {"bits": 4, "mode": "mxfp4"}}, None, "4-bit mxfp4"),
        ({"quantization_config": {"quant_method": "fp8"}}, None, "fp8"),
        ({"quantization_config": {"quant_method": 7}}, None, None),
    ],
)
def test_types_of_the_weights(
    tmp_path: Path, config: dict[str, object], dtype: str | None, quantization: str | None
) -> None:
    model(tmp_path / "m", {"model_type": "x", **config})
    (entry,) = discover([tmp_path]).models
    assert (entry.dtype, entry.quantization) == (dtype, quantization)


def test_the_window_falls_back_to_the_tokenizers(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", {"model_type": "x"})
    write_json(folder / "tokenizer_config.json", {"model_max_length": 77})
    assert discover([tmp_path]).models[0].context_window == 77


def test_an_index_says_which_files_are_weights(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "consolidated.safetensors").write_bytes(bytes(100))
    index = folder / "model.safetensors.index.json"
    write_json(index, {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}})
    assert discover([tmp_path]).models[0].weight_bytes == 10
    write_json(index, {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    found = discover([tmp_path])
    assert not found.models
    assert found.problems[0].reason == "the weights are incomplete: model-2.safetensors is missing"


def test_ambiguous_names_get_their_owner(tmp_path: Path) -> None:
    for name in ("x/m", "y/m", "y/n"):
        model(tmp_path / name)
    found = discover([tmp_path])
    assert ids(found) == ["n", "x/m", "y/m"]
    assert resolve(found.models, "m") is None
    for name in ("x/m", "y/m", "y/n"):
        entry = resolve(found.models, name)
        assert entry is not None
        assert entry.path == tmp_path / name
    assert resolve(found.models, "n") == resolve(found.models, "y/n")
    assert resolve(found.models, "x/n") is None


def test_the_same_owner_and_name_twice_keeps_the_first(tmp_path: Path) -> None:
    for top in ("a", "b"):
        model(tmp_path / top / "org" / "m")
    found = discover([tmp_path / "b", tmp_path / "a"])
    assert [(entry.id, entry.path.parts[-3]) for entry in found.models] == [("org/m", "b")]
    assert found.problems[0].path == tmp_path / "a" / "org" / "m"
    assert "'org/m' already means" in found.problems[0].reason


def test_demo_means_the_demo_model(tmp_path: Path) -> None:
    model(tmp_path / "x")
    assert resolve(discover([tmp_path]).models, "demo") is None
    model(tmp_path / "p" / DEMO_ID)
    entry = resolve(discover([tmp_path]).models, "demo")
    assert entry is not None
    assert entry.id == DEMO_ID
    model(tmp_path / "q" / DEMO_ID)
    entry = resolve(discover([tmp_path]).models, "demo")
    assert entry is not None
    assert entry.id == f"p/{DEMO_ID}"
    model(tmp_path / "demo")
    entry = resolve(discover([tmp_path]).models, "demo")
    assert entry is not None
    assert entry.path == tmp_path / "demo"


def test_hidden_folders_and_plain_files_are_not_looked_at(tmp_path: Path) -> None:
    model(tmp_path / ".pull" / "m")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_text("")
    found = discover([tmp_path])
    assert found == Discovery((), ())


def test_a_missing_directory_is_an_empty_one(tmp_path: Path) -> None:
    assert discover([tmp_path / "none"]) == Discovery((), ())


def test_link_loops_end_and_linked_models_appear_once(tmp_path: Path) -> None:
    model(tmp_path / "a" / "m")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "z").symlink_to(tmp_path / "a" / "m")
    found = discover([tmp_path, tmp_path / "a"])
    assert ids(found) == ["m"]
    assert not found.problems


def test_the_hugging_face_cache(tmp_path: Path) -> None:
    hub = tmp_path / "models--org--name"
    for revision in ("aaa", "bbb"):
        model(hub / "snapshots" / revision)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("bbb\n")
    (hub / "blobs").mkdir()
    found = discover([tmp_path])
    assert ids(found) == ["name"]
    assert found.models[0].path.name == "bbb"
    assert resolve(found.models, "org/name") == found.models[0]
    (hub / "snapshots" / "bbb" / "model.safetensors").unlink()
    (hub / "snapshots" / "bbb" / "model.safetensors").symlink_to(hub / "blobs" / "cut")
    assert discover([tmp_path]).problems[0].reason.startswith("the weights are incomplete")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"{}", "names no model_type"),
        (b'{"model_type": 5}', "names no model_type"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_broken_model_is_skipped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    model(tmp_path / "good")
    (model(tmp_path / "bad") / "config.json").write_bytes(content)
    with caplog.at_level(logging.WARNING, "omlx.models"):
        found = discover([tmp_path])
    assert ids(found) == ["good"]
    assert found.problems[0].path == tmp_path / "bad"
    assert reason in found.problems[0].reason
    assert reason in caplog.text


def cached(
    cache: Path, repo: str, revision: str, *, main: bool = False, config: object = CONFIG
) -> Path:
    """A snapshot in a Hugging Face cache: links to blobs, as its tools make them."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    snapshot.mkdir(parents=True)
    blobs = folder / "blobs"
    blobs.mkdir(exist_ok=True)
    write_json(blobs / f"config-{revision}", config)
    (blobs / f"weights-{revision}").write_bytes(bytes(10))
    (snapshot / "config.json").symlink_to(f"../../blobs/config-{revision}")
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/weights-{revision}")
    if main:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(revision)
    return snapshot


def test_the_hub_cache(tmp_path: Path) -> None:
    old = cached(tmp_path, "org/name", "a" * 40)
    new = cached(tmp_path, "org/name", "b" * 40, main=True)
    os.utime(old, (2 * 10**9, 2 * 10**9))
    (entry,) = discover([], hub_cache=tmp_path).models
    assert (entry.id, entry.path, entry.source) == ("name", new, Source.HUB_CACHE)
    assert entry.revision == "b" * 40
    assert resolve([entry], "org/name") == entry


def test_without_main_the_newest_snapshot_with_a_model_counts(tmp_path: Path) -> None:
    old = cached(tmp_path, "org/name", "a" * 40)
    newer = cached(tmp_path, "org/name", "b" * 40)
    empty = tmp_path / "models--org--name" / "snapshots" / ("c" * 40)
    empty.mkdir()
    for at, folder in enumerate((old, newer, empty)):
        os.utime(folder, (10**9 + at, 10**9 + at))
    (entry,) = discover([], hub_cache=tmp_path).models
    assert entry.path == newer


def test_a_broken_link_in_the_hub_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, "org/name", "a" * 40, main=True)
    (snapshot / "model.safetensors").resolve().unlink()
    found = discover([], hub_cache=tmp_path)
    assert not found.models
    assert found.problems[0].reason.startswith("the weights are incomplete")


def test_other_things_in_the_hub_cache_are_no_problem(tmp_path: Path) -> None:
    cached(tmp_path, "org/speech", "a" * 40, main=True, config={"model_type": "whisper"})
    cached(tmp_path, "org/name", "a" * 40, main=True)
    (tmp_path / "datasets--org--data" / "snapshots" / "x").mkdir(parents=True)
    (tmp_path / "models--org--nothing").mkdir()
    (tmp_path / "models--file").write_text("")
    found = discover([], hub_cache=tmp_path, why_not=not_whisper)
    assert (ids(found), found.problems) == (["name"], ())
    found = discover([tmp_path / "models--org--speech"], why_not=not_whisper)
    assert [problem.reason for problem in found.problems] == ["no speech"]


def not_whisper(config: Mapping[str, object]) -> str | None:
    return "no speech" if config.get("model_type") == "whisper" else None


def test_one_name_in_a_folder_and_in_the_hub_cache(tmp_path: Path) -> None:
    model(tmp_path / "models" / "mine" / "name")
    cached(tmp_path / "hub", "org/name", "a" * 40, main=True)
    found = discover([tmp_path / "models"], hub_cache=tmp_path / "hub")
    assert ids(found) == ["mine/name", "org/name"]


def test_a_hub_cache_that_is_not_there(tmp_path: Path) -> None:
    assert discover([], hub_cache=tmp_path / "none") == Discovery((), ())
    (tmp_path / "file").write_text("")
    assert discover([], hub_cache=tmp_path / "file") == Discovery((), ())


def test_the_hub_cache_named_as_a_folder_counts_once(tmp_path: Path) -> None:
    cached(tmp_path, "org/name", "a" * 40, main=True)
    (entry,) = discover([tmp_path], hub_cache=tmp_path).models
    assert entry.source is Source.FOLDER
