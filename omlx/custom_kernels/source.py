"""The sources of kernels: files of kernels/, split into header and body, with a digest.

mlx takes a kernel as the body of a function, whose parameters it writes itself, and a header that
stands before it. A file has both: what follows the line `// body` is the body. `#include "NAME"` is
replaced by that file of kernels/include, once. Knows nothing of mlx.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omlx.errors import OmlxError
from omlx.settings.places import data_dir

SUFFIXES = {"cuda": "cu", "metal": "metal"}
_BODY = "// body\n"
_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel's source; `digest` is of header and body, in hexadecimal."""

    name: str
    header: str
    body: str
    digest: str


def read_source(backend: str, name: str, *, folder: Path | None = None) -> Source:
    """The source of kernel `name` for "cuda" or "metal"; OmlxError where the file is not whole."""
    folder = folder or data_dir("kernels")
    path = folder / backend / f"{name}.{SUFFIXES[backend]}"
    try:
        head, found, body = path.read_text().partition(_BODY)
        head = _included(head, folder / "include", [])
    except OSError as error:
        raise OmlxError(
            f"can't read the kernel source {path}: {error.strerror or error}",
            hint="install omlx again",
        ) from error
    if not found:
        raise OmlxError(f"{path} has no line `// body`", hint="install omlx again")
    digest = hashlib.sha256(f"{head}\0{body}".encode()).hexdigest()
    return Source(name, head, body, digest)


def digest_of(source: str, files: Iterable[Path]) -> str:
    """A source's digest with the content of the files that launch it; in hexadecimal."""
    whole = hashlib.sha256(source.encode())
    for path in files:
        whole.update(b"\0" + path.read_bytes())
    return whole.hexdigest()


def _included(text: str, folder: Path, seen: list[str]) -> str:
    def content(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.append(name)
        inner = (folder / name).read_text().replace("#pragma once\n", "")
        return _included(inner, folder, seen)

    return _INCLUDE.sub(content, text)
