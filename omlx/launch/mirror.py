"""A folder that stands for one of the user's: links to what is in it, but for some files.

Knows nothing about clients. What a client makes in it, or writes anew in place of a link, is moved
to the user's own folder once the client has ended.
"""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from omlx.launch.plan import Mirror

_PASSING = (".pid", ".lock", ".sock", ".tmp")


def link(folder: Path, mirrors: Iterable[Mirror]) -> None:
    """Make the links below a client's folder, and the user's folders that shall be there."""
    for mirror in mirrors:
        here = folder / mirror.name
        here.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in mirror.folders:
            with suppress(OSError):
                (mirror.source / name).mkdir(parents=True, exist_ok=True)
        for name in _names(mirror.source):
            if name not in mirror.own:
                with suppress(FileExistsError):
                    (here / name).symlink_to(mirror.source / name)


def adopt(folder: Path, mirrors: Iterable[Mirror]) -> None:
    """Move to the user's own folders what came about in those that stand for them."""
    mirrors = tuple(mirrors)
    for mirror in mirrors:
        here = folder / mirror.name
        for name in _names(here):
            made, to = here / name, mirror.source / name
            if made.is_symlink() or name in mirror.own or made.suffix in _PASSING:
                continue
            if made.is_dir() and to.exists():
                continue
            with suppress(OSError):
                mirror.source.mkdir(parents=True, exist_ok=True)
                shutil.move(made, Path(os.path.realpath(to)))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
