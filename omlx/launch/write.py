"""Changes the user's files for good, with a record of what was there, and puts it back.

Knows nothing about clients. Either all files of a client are changed or none: what can't be done is
found out before, and what went wrong on the way is undone.
"""

import difflib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from omlx.errors import OmlxError
from omlx.launch.plan import Edit

_MAX_FILE_BYTES = 10_000_000
_MAX_RECORD_BYTES = 1_000_000
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Change:
    """A file as it is and as it shall be; `target` is what `path` means, links followed.

    `before` is None where there is no file yet; `folders` are those to be made for it, the
    outermost first.
    """

    path: Path
    target: Path
    before: bytes | None
    after: bytes
    mode: int
    folders: tuple[Path, ...] = ()

    @property
    def diff(self) -> str:
        """What is changed, as diff -u shows it."""
        old = (self.before or b"").decode("utf-8", "replace").splitlines(keepends=True)
        new = self.after.decode("utf-8", "replace").splitlines(keepends=True)
        name = str(self.path)
        source = name if self.before is not None else "/dev/null"
        return "".join(_closed(line) for line in difflib.unified_diff(old, new, source, name))


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the record says of one file; the digests tell whether it was changed since."""

    path: Path
    target: Path
    before: str | None
    after: str
    mode: int
    backup: str
    folders: tuple[Path, ...]


class Writer:
    """Writes and restores the files of clients; `folder` is where their records are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self, edits: Sequence[Edit]) -> list[Change]:
        """The changes that edits make, files that would not differ left out; OmlxError.

        Nothing is written; everything that would fail later is looked for here.
        """
        changes = [_change(edit) for edit in edits]
        changes = [change for change in changes if change.before != change.after]
        for change in changes:
            _check_writable(change)
        return changes

    def write(self, client: str, changes: Sequence[Change], *, force: bool = False) -> None:
        """Make changes, with a record of them before the first; OmlxError, and nothing is changed.

        A file that was changed since it was last written is refused, unless forced: then it counts
        from here on as what the user had.
        """
        written = self._read(client)
        kept = {one.target: one for one in written}
        for change in changes:
            old = kept.get(change.target)
            is_ours = old is not None and old.after == _digest(change.before)
            if old is not None and not is_ours and not force:
                raise _changed_since(change.path)
            backup = old.backup if old is not None and is_ours else self._back_up(client, change)
            before = old.before if old is not None and is_ours else _digest(change.before)
            folders = old.folders if old is not None else change.folders
            kept[change.target] = _Kept(
                change.path,
                change.target,
                before,
                cast(str, _digest(change.after)),
                change.mode,
                backup,
                folders,
            )
        self._record(client, list(kept.values()))
        done: list[Change] = []
        try:
            for change in changes:
                done.append(change)
                _make_folders(change.folders)
                _replace(change.target, change.after, change.mode)
        except OSError as error:
            _undo(done)
            self._forget(client, written)
            raise OmlxError(
                f"{done[-1].path} cannot be written: {error.strerror or error}",
                hint="nothing was changed",
            ) from None

    def restore(self, client: str, *, force: bool = False) -> list[Path]:
        """Put back every file of a client; the paths. OmlxError, and nothing is changed.

        Files that were changed since are refused, unless forced: they are kept below "replaced".
        """
        kept = self._read(client)
        if not kept:
            raise OmlxError(
                f"nothing was written for {client}",
                hint=f"omlx launch {client} --write changes files",
            )
        texts = [self._backed_up(client, one) for one in kept]
        for one in kept:
            now = _read_file(one.target)
            if _digest(now) in (one.after, one.before):
                continue
            if not force:
                raise _changed_since(one.path)
            self._set_aside(client, one, now)
        for one, text in zip(kept, texts, strict=True):
            try:
                _put_back(one, text)
            except OSError as error:
                reason = error.strerror or str(error)
                raise OmlxError(f"{one.path} cannot be put back: {reason}") from None
        self._forget(client, [])
        return [one.path for one in kept]

    def _forget(self, client: str, but: Sequence[_Kept]) -> None:
        """Let the record and the backups be those of what is still written."""
        names = {one.backup for one in but}
        with suppress(OSError):
            if but:
                self._record(client, but)
            else:
                self._path(client).unlink(missing_ok=True)
            for path in list(self._backups(client).iterdir()):
                if path.name not in names:
                    path.unlink()
            if not names:
                self._backups(client).rmdir()

    def _path(self, client: str) -> Path:
        return self._folder / f"{client}.json"

    def _backups(self, client: str) -> Path:
        return self._folder / "backup" / client

    def _back_up(self, client: str, change: Change) -> str:
        """Keep what a file holds; the name it is kept by."""
        name = hashlib.sha256(os.fsencode(change.target)).hexdigest()[:16]
        folder = self._backups(client)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(folder / name, change.before or b"", 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OmlxError(f"{change.path} cannot be backed up: {reason}") from None
        return name

    def _backed_up(self, client: str, kept: _Kept) -> bytes:
        """What a file held; OmlxError where the backup is gone or not what it was."""
        if kept.before is None:
            return b""
        path = self._backups(client) / kept.backup
        text = _read_file(path)
        if _digest(text) != kept.before:
            raise OmlxError(f"the backup {path} of {kept.path} is damaged; nothing was changed")
        return text or b""

    def _set_aside(self, client: str, kept: _Kept, text: bytes | None) -> None:
        """Keep what a file that was changed since holds, though nobody asks for it any more."""
        if text is None:
            return
        folder = self._folder / "replaced" / client
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(folder / kept.target.name, text, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OmlxError(f"{kept.path} cannot be kept in {folder}: {reason}") from None

    def _record(self, client: str, kept: Sequence[_Kept]) -> None:
        files = [
            {
                "path": str(one.path),
                "target": str(one.target),
                "before": one.before,
                "after": one.after,
                "mode": one.mode,
                "backup": one.backup,
                "folders": [str(folder) for folder in one.folders],
            }
            for one in kept
        ]
        text = json.dumps({"version": _VERSION, "client": client, "files": files}, indent=2)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self._path(client), text.encode(), 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OmlxError(f"{self._path(client)} cannot be written: {reason}") from None

    def _read(self, client: str) -> list[_Kept]:
        path = self._path(client)
        raw = _read_file(path, _MAX_RECORD_BYTES)
        if raw is None:
            return []
        try:
            record = cast(dict[str, object], json.loads(raw))
            if record["version"] != _VERSION:
                raise ValueError(f"it has version {record['version']!r}")
            return [_kept(one) for one in cast(list[dict[str, object]], record["files"])]
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
            raise OmlxError(
                f"{path} is no record of written files: {error!r}",
                hint=f"the files as they were are below {self._backups(client)}",
            ) from None


def _kept(item: dict[str, object]) -> _Kept:
    match item:
        case {
            "path": str(path),
            "target": str(target),
            "before": str() | None as before,
            "after": str(after),
            "mode": int(mode),
            "backup": str(backup),
            "folders": list(),
        } if Path(backup).name == backup:
            folders = cast(list[str], item["folders"])
            made = tuple(Path(folder) for folder in folders)
            return _Kept(Path(path), Path(target), before, after, mode, backup, made)
        case _:
            raise ValueError("an entry lacks a key")


def _change(edit: Edit) -> Change:
    path = edit.path
    try:
        target = path.resolve()
        info = target.stat() if target.exists() else None
    except (OSError, RuntimeError) as error:
        raise OmlxError(f"{path} cannot be read: {error}") from None
    if info is not None and not stat.S_ISREG(info.st_mode):
        raise OmlxError(f"{path} is no file")
    before = _read_file(target)
    try:
        old = (before or b"").decode("utf-8")
        after = edit.change(old).encode("utf-8")
    except UnicodeDecodeError:
        raise OmlxError(f"{path} is no UTF-8 text", hint="nothing was changed") from None
    except ValueError as error:
        raise OmlxError(
            f"{path} can't be changed: {error}",
            hint="--print shows what to set by hand; nothing was changed",
        ) from None
    mode = 0o600 if info is None else stat.S_IMODE(info.st_mode)
    return Change(path, target, before, after, mode, _missing(target.parent))


def _missing(folder: Path) -> tuple[Path, ...]:
    """The folders of a path that are not there, the outermost first."""
    found: list[Path] = []
    while not folder.exists() and folder != folder.parent:
        found.append(folder)
        folder = folder.parent
    return tuple(reversed(found))


def _check_writable(change: Change) -> None:
    """OmlxError for what the user made read-only, also where this process could write it."""
    there = change.folders[0].parent if change.folders else change.target.parent
    for path in (change.target, there):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OmlxError(f"{path} cannot be written: {error.strerror or error}") from None
        if not mode & stat.S_IWUSR or not os.access(path, os.W_OK):
            raise OmlxError(f"{path} is read-only", hint="nothing was changed")


def _make_folders(folders: Sequence[Path]) -> None:
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)


def _undo(done: Sequence[Change]) -> None:
    for change in done:
        with suppress(OSError):
            if change.before is None:
                change.target.unlink(missing_ok=True)
                _remove_folders(change.folders)
            else:
                _replace(change.target, change.before, change.mode)


def _put_back(kept: _Kept, text: bytes) -> None:
    if kept.before is None:
        kept.target.unlink(missing_ok=True)
        _remove_folders(kept.folders)
    elif _digest(_read_file(kept.target)) != kept.before:
        kept.target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(kept.target, text, kept.mode)


def _remove_folders(folders: Sequence[Path]) -> None:
    """Remove those folders that are empty; others hold something of the user's by now."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Put data in the place of a file at once, with its owner where that is allowed."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            with suppress(OSError):
                owner = path.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read_file(path: Path, limit: int = _MAX_FILE_BYTES) -> bytes | None:
    """What a file holds; None where there is none. OmlxError."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OmlxError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise OmlxError(f"{path} has more than {limit:,} bytes")
    return data


def _digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


def _changed_since(path: Path) -> OmlxError:
    return OmlxError(
        f"{path} was changed since it was written, perhaps by the client itself",
        hint="--force goes on; with --restore, what it holds now is then kept in OMLX_HOME in "
        "state/launch/replaced",
    )


def _closed(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n"
