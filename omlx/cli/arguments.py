"""Options that were given, as a command line of `omlx serve`: for another process, or for later.

Knows nothing about processes; secrets are kept out of command lines, which others can see.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from omlx.cli.options import Globals
from omlx.errors import OmlxError

if TYPE_CHECKING:
    from omlx.settings.build import Resolved
    from omlx.settings.leaf import Leaf

Given = Mapping[str, object]  # options by their parameter's name, as click has them


def arguments_of(given: Given) -> tuple[str, ...]:
    """The options but secrets as `omlx serve` takes them."""
    found: list[str] = []
    for leaf, value in _settings(given):
        if leaf.option.secret:
            continue
        if isinstance(value, bool):
            found.append(leaf.flag if value else "--no-" + leaf.flag.removeprefix("--"))
        else:
            found += [f"{leaf.flag}={one}" for one in _each(value)]
    if given.get("demo"):
        found.append("--demo")
    if given.get("profile") is not None:
        found.append(f"--profile={given['profile']}")
    return tuple(found)


def secrets_of(given: Given) -> Mapping[str, str]:
    """The secrets among the options, by the variable that stands for them."""
    return {leaf.env: str(value) for leaf, value in _settings(given) if leaf.option.secret}


def _settings(given: Given) -> list[tuple["Leaf", object]]:
    """The settings that were given."""
    from omlx.settings.leaf import leaves

    named = ((leaf, given.get(path.replace(".", "__"))) for path, leaf in leaves().items())
    return [(leaf, value) for leaf, value in named if value is not None and value != ()]


def _each(value: object) -> tuple[object, ...]:
    """The values of an option that may be given several times, or the only one."""
    return cast(tuple[object, ...], value) if isinstance(value, tuple) else (value,)


def with_profile(ctx: click.Context, given: Given) -> Given:
    """The options, with the profile that was named before the command."""
    parent = ctx.find_object(Globals)
    if given.get("profile") is not None or parent is None or parent.profile is None:
        return given
    return {**given, "profile": parent.profile}


def withheld(resolved: "Resolved") -> tuple[str, ...]:
    """The flags of secrets that came by an option or a variable, and so not from a file."""
    from omlx.settings.layers import OriginKind
    from omlx.settings.leaf import leaves

    passing = (OriginKind.CLI, OriginKind.ENV)
    secrets = [leaf for leaf in leaves().values() if leaf.option.secret]
    return tuple(s.flag for s in secrets if resolved.origins[s.path].kind in passing)


def anchored(given: Given, cwd: Path) -> Given:
    """The options with paths that hold in any folder."""
    from omlx.settings.leaf import Kind

    found = dict(given)
    for leaf, value in _settings(given):
        if leaf.kind in (Kind.PATH, Kind.PATHS):
            paths = tuple(_anchored(str(one), leaf, cwd) for one in _each(value))
            found[leaf.path.replace(".", "__")] = paths if isinstance(value, tuple) else paths[0]
    return found


def _anchored(text: str, leaf: "Leaf", cwd: Path) -> str:
    if text in leaf.words:
        return text
    parts = [part for part in text.split(os.pathsep) if part]
    return os.pathsep.join(str(cwd / Path(part).expanduser()) for part in parts)


def merged(arguments: tuple[str, ...], given: Given) -> Given:
    """The options of an earlier command line; those that are given now replace them. OmlxError."""
    from omlx.cli.serve import serve

    try:
        with serve.make_context("omlx serve", list(arguments)) as ctx:
            earlier = dict(ctx.params)
    except click.UsageError as error:
        raise OmlxError(
            f"the server was started with options of another version: {error.format_message()}",
            hint="end it with omlx stop, and start it with omlx start and the options it needs",
        ) from None
    now = {name: value for name, value in given.items() if value is not None and value != ()}
    return {**earlier, **now, "demo": bool(earlier.get("demo") or given.get("demo"))}
