"""Gives a model its identity: a digest of what its keys and values depend on.

Knows nothing about mlx, and reads a sample of the weights only, so that it takes no time.
"""

import hashlib
import json
import logging
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from omlx.errors import ModelError
from omlx.models.arch.known import own_source
from omlx.models.config import items, mapping, read_json

_FORMAT = b"omlx model fingerprint 1"
_WINDOW_BYTES = 4096
_MAX_HEADER_BYTES = 256 * 2**20
_ADAPTER_CONFIG = "adapter_config.json"
_log = logging.getLogger("omlx.models")


def identify(path: Path, *, mlx_lm_version: str) -> str:
    """The fingerprint; where it can't be taken one of its own, so that nothing is shared."""
    try:
        return fingerprint(path, mlx_lm_version=mlx_lm_version)
    except ModelError as error:
        _log.warning("what is cached of the model is for this run only: %s", error)
        return secrets.token_hex(32)


def fingerprint(path: Path, *, mlx_lm_version: str) -> str:
    """64 hex digits that change with config.json, weights, adapter or mlx-lm, not with names.

    Of each tensor the first, middle and last 4 KiB count. ModelError where a file is bad.
    """
    config = read_json(path / "config.json")
    files = sorted(path.glob("*.safetensors"))
    adapters = [file for file in files if file.name.startswith("adapter")]
    weights = [file for file in files if file not in adapters]
    if not weights:
        raise ModelError(f"{path} holds no safetensors files")
    digest = _Digest()
    digest.add(b"format", _FORMAT)
    digest.add(b"mlx-lm", mlx_lm_version.encode())
    digest.add(b"config", _canonical(config))
    digest.add_all(b"code", _code(path, config))
    digest.add_all(b"weights", sorted(map(_file_digest, weights)))
    digest.add_all(b"adapters", sorted(map(_file_digest, adapters)))
    if (path / _ADAPTER_CONFIG).exists():
        digest.add(b"adapter config", _canonical(read_json(path / _ADAPTER_CONFIG)))
    return digest.hex()


class _Digest:
    """SHA-256 over fields, each with its tag and lengths, so that no two lists run together."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, tag: bytes, value: bytes) -> None:
        self._hash.update(struct.pack("<QQ", len(tag), len(value)) + tag)
        self._hash.update(value)

    def add_all(self, tag: bytes, values: Iterable[bytes]) -> None:
        values = list(values)
        self.add(tag, struct.pack("<Q", len(values)))
        for value in values:
            self.add(tag, value)

    def digest(self) -> bytes:
        return self._hash.digest()

    def hex(self) -> str:
        return self._hash.hexdigest()


def _canonical(value: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(_without_places(value), sort_keys=True, separators=(",", ":")).encode()
    except RecursionError:
        raise ModelError("A configuration of the model is nested too deeply") from None


def _without_places(value: object) -> object:
    """The value without the entries that say where somebody once had the model."""
    if isinstance(value, dict):
        entries = mapping(cast(object, value)).items()
        return {key: _without_places(entry) for key, entry in entries if key != "_name_or_path"}
    if isinstance(value, list):
        return [_without_places(item) for item in items(cast(object, value))]
    return value


def _code(path: Path, config: Mapping[str, object]) -> Iterator[bytes]:
    """The model's own Python file, where it brings one, and ours, where mlx-lm has none."""
    if (source := own_source(config)) is not None:
        yield source
    name = config.get("model_file")
    if isinstance(name, str):
        try:
            yield (path / name).read_bytes()
        except OSError as error:
            raise ModelError(f"{path / name} can't be read: {error.strerror}") from None


def _file_digest(path: Path) -> bytes:
    """A safetensors file's header, size and samples, without its name."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = _header(file, path, size)
            data_start = 8 + len(header)
            digest = _Digest()
            digest.add(b"header", header)
            digest.add(b"size", struct.pack("<Q", size - data_start))
            for tensor in _tensors(header, path, size - data_start):
                digest.add(b"name", tensor.name.encode("utf-8", "surrogatepass"))
                digest.add(b"kind", tensor.kind)
                for first, num_bytes in _windows(tensor.start, tensor.end):
                    digest.add(b"sample", _read(file, path, data_start + first, num_bytes))
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from None
    return digest.digest()


def _header(file: BinaryIO, path: Path, size: int) -> bytes:
    if size < 8:
        raise ModelError(f"{path} is too short for a safetensors file")
    (length,) = struct.unpack("<Q", _read(file, path, 0, 8))
    if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        raise ModelError(f"{path} is not a safetensors file, or is truncated")
    return _read(file, path, 8, length)


def _read(file: BinaryIO, path: Path, offset: int, num_bytes: int) -> bytes:
    data = os.pread(file.fileno(), num_bytes, offset)
    if len(data) != num_bytes:
        raise ModelError(f"{path} became shorter while it was read")
    return data


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    kind: bytes
    start: int
    end: int


def _tensors(header: bytes, path: Path, data_bytes: int) -> list[_Tensor]:
    """Tensors sorted by name."""
    try:
        parsed: object = json.loads(header)
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not a safetensors file: its header is no JSON") from None
    if not isinstance(parsed, dict):
        raise ModelError(f"{path} is not a safetensors file: its header is no JSON object")
    found: list[_Tensor] = []
    for name, value in sorted(cast(dict[str, object], parsed).items()):
        if name != "__metadata__":
            entry = mapping(value)
            place = items(entry.get("data_offsets"))
            start, end = place if len(place) == 2 else (None, None)
            if (
                type(start) is not int
                or type(end) is not int
                or not 0 <= start <= end <= data_bytes
            ):
                raise ModelError(f"{path} is truncated or damaged: {name!r} is not all there")
            kind = _canonical({"dtype": entry.get("dtype"), "shape": entry.get("shape")})
            found.append(_Tensor(name, kind, start, end))
    return found


def _windows(start: int, end: int) -> Iterator[tuple[int, int]]:
    """First, middle and last 4 KiB of a range, or all of a shorter one."""
    size = end - start
    if size <= 3 * _WINDOW_BYTES:
        yield start, size
        return
    middle = start + (size - _WINDOW_BYTES) // 2
    for first in (start, middle, end - _WINDOW_BYTES):
        yield first, _WINDOW_BYTES
