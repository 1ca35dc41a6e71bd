"""A model's identity: what changes it, what does not, and what is refused.

Knows nothing about blocks and roots.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.errors import ModelError
from omlx.models.fingerprint import fingerprint, identify
from tests.unit.models.tiny import write_json

CONFIG: dict[str, object] = {
    "model_type": "llama",
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "torch_dtype": "f",
    "text_config": {},
}
BIG = 40_000


def safetensors(path: Path, tensors: dict[str, bytes], metadata: str = "mlx") -> None:
    header: dict[str, object] = {"__metadata__": {"format": metadata}}
    data = b""
    for name, values in tensors.items():
        place = [len(data), len(data) + len(values)]
        header[name] = {"dtype": "U8", "shape": [len(values)], "data_offsets": place}
        data += values
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    safetensors(folder / "model-1.safetensors", {"a": bytes(BIG), "b": bytes(10)})
    safetensors(folder / "model-2.safetensors", {"c": bytes(13_000), "empty": b""})
    return folder


def of(folder: Path, version: str = "0.32.2") -> str:
    return fingerprint(folder, mlx_lm_version=version)


def flip(file: Path, tensor_offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[8 + struct.unpack("<Q", data[:8])[0] + tensor_offset] ^= 1
    file.write_bytes(data)


def test_it_is_64_hex_digits_and_repeats(model: Path) -> None:
    assert of(model) == of(model)
    assert len(of(model)) == 64
    assert set(of(model)) <= set("0123456789abcdef")


MIDDLE = (BIG - 4096) // 2
WINDOWS = [0, 4095, MIDDLE, MIDDLE + 4095, BIG - 4096, BIG - 1, BIG, BIG + 9]


@pytest.mark.parametrize("offset", WINDOWS)
def test_one_bit_of_a_sampled_weight_changes_it(model: Path, offset: int) -> None:
    before = of(model)
    flip(model / "model-1.safetensors", offset)
    assert of(model) != before


@pytest.mark.parametrize("offset", [4096, MIDDLE - 1, MIDDLE + 4096, BIG - 4097])
def test_only_samples_are_read(model: Path, offset: int) -> None:
    before = of(model)
    flip(model / "model-1.safetensors", offset)
    assert of(model) == before


def edit(**changes: object) -> Callable[[Path], None]:
    return lambda folder: write_json(folder / "config.json", {**CONFIG, **changes})


def rewrite(name: str, tensors: dict[str, bytes], metadata: str = "mlx") -> Callable[[Path], None]:
    return lambda folder: safetensors(folder / name, tensors, metadata)


SECOND = {"c": bytes(13_000), "empty": b""}
CHANGES: dict[str, Callable[[Path], None]] = {
    "rope": edit(rope_theta=10001.0),
    "rope scaling": edit(rope_scaling={"type": "linear", "factor": 2.0}),
    "dtype": edit(torch_dtype="g"),
    "new entry": edit(quantization={"bits": 4}),
    "tensor name": rewrite("model-2.safetensors", {"d": bytes(13_000), "empty": b""}),
    "tensor size": rewrite("model-2.safetensors", {"c": bytes(13_001), "empty": b""}),
    "metadata": rewrite("model-2.safetensors", SECOND, "pt"),
    "trailing bytes": lambda f: os.truncate(f / "model-2.safetensors", 20_000),
    "one file more": rewrite("model-3.safetensors", {}),
    "one file less": lambda f: (f / "model-2.safetensors").unlink(),
    "the same file twice": lambda f: shutil.copy(f / "model-2.safetensors", f / "x.safetensors"),
    "adapter": rewrite("adapters.safetensors", {"lora": b"1"}),
    "adapter config": lambda f: write_json(f / "adapter_config.json", {"rank": 8}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_matters_changes_it(model: Path, name: str) -> None:
    before = of(model)
    CHANGES[name](model)
    assert of(model) != before


def test_each_change_gives_its_own(model: Path, tmp_path: Path) -> None:
    seen = {of(model), of(model, "0.32.3")}
    for number, change in enumerate(CHANGES.values()):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(model, copy)
        change(copy)
        seen.add(of(copy))
    assert len(seen) == len(CHANGES) + 2


def test_the_adapters_bytes_and_settings_count(model: Path) -> None:
    safetensors(model / "adapters.safetensors", {"lora": b"1"})
    write_json(model / "adapter_config.json", {"rank": 8})
    first = of(model)
    safetensors(model / "adapters.safetensors", {"lora": b"2"})
    second = of(model)
    write_json(model / "adapter_config.json", {"rank": 16})
    assert len({first, second, of(model)}) == 3


def test_an_adapter_is_not_a_weight_file(model: Path) -> None:
    safetensors(model / "adapters.safetensors", {"lora": b"1"})
    as_adapter = of(model)
    (model / "adapters.safetensors").rename(model / "lora.safetensors")
    assert of(model) != as_adapter


def test_a_models_own_code_counts(model: Path) -> None:
    write_json(model / "config.json", {**CONFIG, "model_file": "own.py"})
    with pytest.raises(ModelError, match=r"own\.py can't be read"):
        of(model)
    (model / "own.py").write_text("x = 1")
    before = of(model)
    (model / "own.py").write_text("x = 2")
    assert of(model) != before


def test_the_version_of_mlx_lm_counts(model: Path) -> None:
    assert of(model) != of(model, "0.32.3")


SAME: dict[str, Callable[[Path], object]] = {
    "times": lambda f: [os.utime(file, (1, 1)) for file in f.iterdir()],
    "file names": lambda f: (f / "model-1.safetensors").rename(f / "z.safetensors"),
    "where it was": edit(_name_or_path="/home/somebody/model"),
    "where a part of it was": lambda f: write_json(
        f / "config.json", {**CONFIG, "text_config": {"_name_or_path": "/x"}}
    ),
    "order of entries": lambda f: write_json(f / "config.json", dict(reversed(CONFIG.items()))),
    "layout of the text": lambda f: (f / "config.json").write_text(json.dumps(CONFIG, indent=8)),
    "other files": lambda f: write_json(f / "tokenizer_config.json", {"chat_template": "x"}),
}


@pytest.mark.parametrize("name", SAME)
def test_what_does_not_matter_leaves_it(model: Path, name: str) -> None:
    before = of(model)
    SAME[name](model)
    assert of(model) == before


def test_the_folders_name_leaves_it(model: Path, tmp_path: Path) -> None:
    before = of(model)
    assert of(model.rename(tmp_path / "other")) == before


def test_it_is_the_same_on_every_machine(model: Path) -> None:
    """Pinned: a change of this value makes every stored block of every user a miss."""
    assert of(model) == "353b8aa698132c83c170081ac835eebbf015d2354574b711a74e533dcf8edb90"


GOOD = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()


def with_length(head: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(head) if length is None else length) + head + data


BAD = {
    "empty": b"",
    "short": b"1234567",
    "huge header": with_length(b"{}", length=2**63),
    "header past the end": with_length(b"{}", length=3),
    "no header": with_length(b""),
    "no json": with_length(b"{{{{"),
    "no object": with_length(b"[]  "),
    "deep": with_length(b"[" * 100_000),
    "truncated": with_length(GOOD, b"123"),
    "no entry": with_length(b'{"a": 1}'),
    "no offsets": with_length(b'{"a": {}}'),
    "odd offsets": with_length(b'{"a": {"data_offsets": [0, 1, 2]}}', b"123"),
    "text offsets": with_length(b'{"a": {"data_offsets": ["0", "1"]}}', b"123"),
    "turned offsets": with_length(b'{"a": {"data_offsets": [2, 1]}}', b"123"),
    "negative offsets": with_length(b'{"a": {"data_offsets": [-1, 1]}}', b"123"),
    "far offsets": with_length(b'{"a": {"data_offsets": [0, 99999999999999999999]}}', b"123"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_name(model: Path, name: str) -> None:
    (model / "model-2.safetensors").write_bytes(BAD[name])
    with pytest.raises(ModelError, match=r"model-2\.safetensors"):
        of(model)


def test_an_identity_that_can_not_be_read_is_one_of_its_own(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P7: never an empty one, which two models could share."""
    assert identify(model, mlx_lm_version="0.32.2") == of(model)
    (model / "model-2.safetensors").write_bytes(b"half a download")
    found = {identify(model, mlx_lm_version="0.32.2") for _ in range(3)}
    assert len(found) == 3 and all(len(bytes.fromhex(one)) == 32 for one in found)
    assert len(caplog.records) == 3 and "model-2.safetensors" in caplog.text


def test_a_good_file_among_the_bad_ones_passes(model: Path) -> None:
    (model / "model-2.safetensors").write_bytes(with_length(GOOD, b"1234"))
    assert len(of(model)) == 64


def test_a_deep_configuration_is_refused(model: Path) -> None:
    for depth in (300, 900, 100_000):
        (model / "config.json").write_text('{"a":' * depth + "1" + "}" * depth)
        try:
            of(model)
        except ModelError:
            continue
        assert depth < 100_000


def test_missing_parts_are_refused(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    (model / "model-2.safetensors").symlink_to(model / "gone")
    with pytest.raises(ModelError, match=r"model-2\.safetensors can't be read"):
        of(model)
    for file in model.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelError, match="holds no safetensors"):
        of(model)
    (model / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        of(model)
