"""`omlx config set`, `unset` and `edit`: settings written to a file, checked before it is touched.

Knows nothing about what settings do, or how a file is changed in place.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.assignments import converted, leaf_of, pairs_of
from omlx.cli.configfile import Place, alone, changed, has, read_text, write_text
from omlx.cli.options import current_dir, warn
from omlx.cli.running import user_home
from omlx.cli.start import talk
from omlx.errors import OmlxError, SettingsError, UsageError

if TYPE_CHECKING:
    from omlx.settings.layers import Layer
    from omlx.settings.leaf import Leaf

_LINE = re.compile(r":\d+: ")
_HELD = ("host", "api_key", "unix_socket", "skip_api_key_verification",
         "allow_unauthenticated_inference")  # fmt: skip

project_option = click.option(
    "--project", "is_project", is_flag=True, help="The omlx.toml of this folder instead."
)
model_option = click.option(
    "--model", "glob", metavar="PATTERN", help="For models whose id matches only, such as 'qwen3*'."
)


@click.command(name="set")
@click.argument("words", metavar="NAME[=]VALUE...", nargs=-1, required=True)
@project_option
@model_option
def set_values(*, words: tuple[str, ...], is_project: bool, glob: str | None) -> None:
    """Write settings to config.toml in OMLX_HOME.

    One as NAME VALUE, or any number as NAME=VALUE, which are written together or not at all. A
    secret that is named without a value is asked for, or read from stdin. All values are checked
    first. Comments of the file stay. An address that other machines can reach is refused unless
    there is an API key. A server that runs takes them at omlx restart.
    """
    values = converted(
        [(leaf, _asked(leaf, text)) for leaf, text in pairs_of(words)], current_dir()
    )
    _check_model(values, glob)
    path = config_path(is_project=is_project)
    apply(path, {_place(leaf, glob): value for leaf, value in values.items()})
    if any(leaf.option.secret for leaf in values) and path.stat().st_mode & 0o077:
        warn([f"other users can read {path}, which holds a secret: chmod 600 {path}"])
    if glob is None:
        warn(_shadowed(values, path))


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@project_option
@model_option
def unset(*, names: tuple[str, ...], is_project: bool, glob: str | None) -> None:
    """Take settings out of config.toml in OMLX_HOME.

    What holds then comes from the other layers, or is the default. A name that no version knows
    can be taken out as well. What is not in the file is said, and the exit code is 0.
    """
    path = config_path(is_project=is_project)
    text = read_text(path)
    places: dict[Place, object] = {}
    for name in names:
        prefix = () if glob is None else ("model", glob)
        place = (*prefix, *name.split("."))
        if has(text, place):
            places[place] = None
        else:
            leaf_of(name)  # a typing error is none of the file's
            talk(f"{name} is not set in {path}")
    if places:
        apply(path, places)


@click.command()
@project_option
def edit(*, is_project: bool) -> None:
    """Open config.toml in OMLX_HOME in an editor.

    The one that VISUAL or EDITOR names. What it leaves is checked, and takes the place of the
    file only if it is right; else it can be corrected, or is kept beside the file.
    """
    path = config_path(is_project=is_project)
    words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with alone(path) as target:
        before = read_text(target)
        handle, name = tempfile.mkstemp(prefix=".edit-", suffix=".toml", dir=target.parent)
        os.close(handle)
        copy = Path(name)
        copy.write_bytes((before or _begin()).encode())
        while True:
            _run_editor(words, copy)
            text = read_text(copy)
            if text in (before, _begin()):
                copy.unlink()
                return talk("nothing was changed")
            try:
                _check(target, before, text, is_edit=True)
                break
            except OmlxError as error:
                if not sys.stdin.isatty():
                    error.hint = f"{path} is as it was; what was written is in {copy}"
                    raise
                talk(f"error: {error.message}")
                if not click.confirm("Edit it again?", default=True, err=True):
                    error.hint = f"{path} is as it was; what was written is in {copy}"
                    raise
        write_text(target, text)
        copy.unlink()
    return talk(f"wrote {path}; a server that runs takes it at omlx restart")


def config_path(*, is_project: bool = False) -> Path:
    """The file that is written: the user's, or that of the current folder."""
    return current_dir() / "omlx.toml" if is_project else user_home() / "config.toml"


def _begin() -> str:
    return "# Settings of omlx; omlx config show lists them all.\n"


def _run_editor(words: Sequence[str], path: Path) -> None:
    try:
        done = subprocess.run([*words, str(path)], check=False)
    except OSError as error:
        raise OmlxError(
            f"the editor {words[0]} can't be started: {error.strerror or error}",
            hint="EDITOR names another one; omlx config set needs none",
        ) from None
    if done.returncode != 0:
        raise OmlxError(f"the editor {words[0]} ended with {done.returncode}; nothing was changed")


def _asked(leaf: "Leaf", text: str | None) -> str:
    """The value of a setting; that of a secret which was not given is asked for."""
    if text is not None:
        return text
    if sys.stdin.isatty():
        return str(click.prompt(leaf.path, hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\n")


def _check_model(values: Mapping["Leaf", object], glob: str | None) -> None:
    wrong = [leaf.path for leaf in values if glob is not None and not leaf.option.per_model]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} cannot be set for one model", hint="leave --model out"
        )


def _place(leaf: "Leaf", glob: str | None) -> Place:
    return (*(() if glob is None else ("model", glob)), *leaf.path.split("."))


def apply(path: Path, values: Mapping[Place, object]) -> None:
    """Change a file, if what comes out is right; else it stays as it is."""
    with alone(path) as target:
        before = read_text(target)
        text = changed(before, values)
        _check(target, before, text)
        if text != before:
            write_text(target, text)


def _check(target: Path, before: str, text: str, *, is_edit: bool = False) -> None:
    """SettingsError where a text has faults that the file did not have, or opens the server."""
    old, new = _layer(target, before), _layer(target, text)
    accepted = () if is_edit else old.problems
    known = {_LINE.sub(": ", problem, count=1) for problem in accepted}
    added = [one for one in new.problems if _LINE.sub(": ", one, count=1) not in known]
    if added:
        raise SettingsError(added, hint="nothing was changed")
    warn([f"still wrong: {problem}" for problem in new.problems])
    if _access(old) != _access(new):
        _check_access({**_access_below(target), **_access(new)})


def _layer(target: Path, text: str) -> "Layer":
    """What a text says as the file that it is meant for."""
    from omlx.settings.layers import from_toml

    handle, name = tempfile.mkstemp(prefix=".check-", dir=target.parent)
    copy = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        return from_toml(copy, shown=str(target))
    finally:
        copy.unlink()


def _access(layer: "Layer") -> dict[str, object]:
    """What a file says of who may connect."""
    names = {f"server.{name}" for name in _HELD}
    return {e.path: e.value for e in layer.entries if e.glob is None and e.path in names}


def _access_below(target: Path) -> dict[str, object]:
    """What the user's own file says of it, where another file is written."""
    own = config_path()
    if target == own.resolve():
        return {}
    return _access(_layer(target, read_text(own)))


def _check_access(values: Mapping[str, object]) -> None:
    """OmlxError where a server with these settings would refuse to listen, and why."""
    from omlx.server.auth import check_access
    from omlx.server.keyring import KeyRing
    from omlx.settings import places
    from omlx.settings.leaf import with_values
    from omlx.settings.schema import Settings

    settings: Settings = with_values(Settings(), values)
    ring = KeyRing(places.keys_path(user_home()), settings.server.api_key)
    ring.load()
    try:
        check_access(settings.server, ring)
    except OmlxError as error:
        hint = "omlx key create NAME makes one; server.api_key in the same call does as well"
        raise OmlxError(f"{error.message}; nothing was changed", hint=hint) from None


def _shadowed(values: Mapping["Leaf", object], path: Path) -> list[str]:
    """Which of the values that were written do not count, and what counts instead."""
    from omlx.settings.build import load
    from omlx.settings.machine import this_machine

    try:
        resolved = load(env=os.environ, cwd=current_dir(), machine=this_machine())
    except SettingsError:
        return []  # of another file, which whoever uses it will hear of
    found: list[str] = []
    for leaf in values:
        origin = resolved.origins[leaf.path]
        if not origin.where.startswith((f"{path}:", f"{path.name}:")):
            found.append(f"{leaf.path} is written, and has another value here: {origin} sets it")
    return found
