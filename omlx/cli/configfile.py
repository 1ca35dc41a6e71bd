"""Changes a TOML file of settings: values in and out, comments kept, all or nothing.

Knows nothing about what the settings do.
"""

import fcntl
import os
import stat
import tempfile
import tomllib
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from omlx.errors import OmlxError, SettingsError

HEAD = "# Written by omlx config set. Comments that are added here stay.\n"
_NEW_MODE = 0o600  # it may hold keys
Place = tuple[str, ...]  # the names of the tables around a value, and its own


def read_text(path: Path) -> str:
    """What a file holds, nothing where it is missing; OmlxError."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8 text (byte {error.start})"]) from None
    except OSError as error:
        raise OmlxError(f"{path} cannot be read: {error.strerror or error}") from None


def changed(text: str, values: Mapping[Place, object]) -> str:
    """The text with these values set, those that are None removed. SettingsError for bad TOML.

    Text that was written here is written anew; anybody else's keeps its comments and its order.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            [f"not valid TOML: {error}"], hint="omlx config edit opens it"
        ) from None
    is_ours = text in ("", _written(data))
    for place, value in values.items():
        _put(data, place, value, prune=is_ours)
    if is_ours:
        return _written(data)
    return _edited(text, values, data)


def _written(data: Mapping[str, Any]) -> str:
    import tomli_w

    return HEAD + tomli_w.dumps(data)


def _edited(text: str, values: Mapping[Place, object], wanted: Mapping[str, Any]) -> str:
    """A text of somebody's with the values in it; OmlxError where that can't be done in place."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        for place, value in values.items():
            _put(cast(MutableMapping[str, Any], document), place, value, prune=False)
        result = tomlkit.dumps(document)
        if _pruned(tomllib.loads(result)) == _pruned(wanted):
            return result
    except (TOMLKitError, ValueError, KeyError):
        pass
    raise OmlxError(
        "the file is written in a way that can't be changed without losing something",
        hint="omlx config edit opens it",
    )


def _pruned(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same without empty tables, which say nothing: dotted keys leave none behind."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        kept = _pruned(cast(dict[str, Any], value)) if isinstance(value, dict) else value
        if kept != {}:
            found[name] = kept
    return found


def _put(data: MutableMapping[str, Any], place: Place, value: object, *, prune: bool) -> None:
    """Set a value in nested tables, or remove it (mutates); with `prune`, also empty tables."""
    table = data
    path = [(data, place[0])]
    for idx, name in enumerate(place[:-1]):
        below = table.get(name)
        if below is None and value is None:
            return
        if below is None:
            table[name] = {}
            below = table[name]
        if not isinstance(below, MutableMapping):
            raise SettingsError([f"'{'.'.join(place[: idx + 1])}' must be a table"])
        table = cast(MutableMapping[str, Any], below)
        path.append((table, place[idx + 1]))
    if value is not None:
        table[place[-1]] = value
        return
    for around, name in reversed(path):
        if around is table or (prune and not around[name]):
            around.pop(name, None)


def has(text: str, place: Place) -> bool:
    """Whether a text sets a value."""
    try:
        node: object = tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    for name in place:
        if not isinstance(node, dict) or name not in node:
            return False
        node = cast(dict[str, object], node)[name]
    return True


@contextmanager
def alone(path: Path) -> Generator[Path]:
    """Hold the right to change a file, links followed; makes its folder. OmlxError."""
    try:
        target = path.resolve()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        raise OmlxError(f"{path} cannot be written: {error}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield target
    finally:
        os.close(folder)


def write_text(target: Path, text: str) -> None:
    """Put a text in the place of a file at once, with its mode; OmlxError."""
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_MODE
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(0, "it is read-only")
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fchmod(file.fileno(), mode)
                with suppress(OSError):
                    owner = target.stat()
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OmlxError(f"{target} cannot be written: {error.strerror or error}") from None
