"""Options of commands, made from the settings, and the settings that a call then has.

Knows nothing about what settings do; click is given no defaults and no variables, so that only
what was typed counts as the command line.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from omlx.errors import OmlxError

if TYPE_CHECKING:
    from omlx.settings.build import Resolved
    from omlx.settings.leaf import Leaf

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_OWN = ("profile", "demo", "dashboard")  # options of commands that are no settings
Callback = TypeVar("Callback", bound=Callable[..., Any])

profile_option = click.option(
    "--profile", metavar="NAME", help="Use a named set of settings. [OMLX_PROFILE]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@dataclass(frozen=True, slots=True)
class Globals:
    """What was given before the command's name."""

    profile: str | None


class SettingType(click.ParamType[object]):
    """Takes any text: the settings check all values together, for one list of errors."""

    name = "value"

    def __init__(self, leaf: "Leaf") -> None:
        self._leaf = leaf

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """What stands for the value in the help."""
        return metavar(self._leaf)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Words that the setting takes; paths are left to the shell."""
        from omlx.settings.leaf import Kind

        if self._leaf.kind in (Kind.PATH, Kind.PATHS):
            kind = "file" if self._leaf.option.is_file else "dir"
            return [CompletionItem(incomplete, type=kind)]
        words = (*self._leaf.option.choices, *self._leaf.words)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class SettingsCommand(click.Command):
    """A command with options of settings; its help has a section for each group of them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of the command itself first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                sections.setdefault(section_of(param), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section_of(param: click.Parameter) -> str:
    """The heading that an option belongs under."""
    if not isinstance(param, SettingOption):
        return "Options"
    return (param.leaf.group or "prompt").capitalize()


class SettingOption(click.Option):
    """The option of one setting; its value is None (or empty) where it was not given."""

    def __init__(self, param_decls: Sequence[str], *, leaf: "Leaf", **attrs: Any) -> None:
        self.leaf = leaf
        help_text = f"{leaf.option.help} [{leaf.env}; default: {default_text(leaf)}]"
        super().__init__(param_decls, help=help_text, default=None, **attrs)


def metavar(leaf: "Leaf") -> str:
    """What stands for a setting's value in the help."""
    from omlx.settings.leaf import Kind

    if leaf.option.is_file:
        return "FILE"
    if leaf.option.choices:
        return "[" + "|".join(leaf.option.choices) + "]"
    name = {
        Kind.PATH: "DIR",
        Kind.PATHS: "DIR",
        Kind.NAMES: "NAME=MODEL",
        Kind.TEXTS: "TEXT",
        Kind.INT: "N",
        Kind.FLOAT: "X",
    }.get(leaf.kind, leaf.kind.name)
    return "|".join([name, *leaf.words])


def default_text(leaf: "Leaf") -> str:
    """A setting's default as people write it."""
    from omlx.settings.value import show

    return show(leaf, leaf.default)


def settings_options(*prefixes: str) -> Callable[[Callback], Callback]:
    """Add the options of the settings whose path begins so (all without one), and --profile."""
    from omlx.settings.leaf import leaves

    chosen = [leaf for path, leaf in leaves().items() if path.startswith(prefixes or "")]

    def add(callback: Callback) -> Callback:
        for leaf in reversed(chosen):
            callback = _setting_option(leaf)(callback)
        return profile_option(callback)

    return add


def _setting_option(leaf: "Leaf") -> Callable[[Callback], Callback]:
    from omlx.settings.leaf import Kind

    name = leaf.path.replace(".", "__")
    if leaf.kind is Kind.BOOL:
        flags = f"{leaf.flag}/--no-{leaf.flag.removeprefix('--')}"
        return click.option(flags, name, cls=SettingOption, leaf=leaf)
    multiple = leaf.kind in (Kind.PATHS, Kind.NAMES, Kind.TEXTS)
    kind = SettingType(leaf)
    return click.option(leaf.flag, name, cls=SettingOption, leaf=leaf, type=kind, multiple=multiple)


def resolve(
    ctx: click.Context, given: Mapping[str, object], *, cwd: Path | None = None
) -> "Resolved":
    """The settings of this call, or of one in another folder; warnings go to stderr."""
    from omlx.settings.build import load
    from omlx.settings.machine import this_machine

    own = given.get("profile")
    parent = ctx.find_object(Globals)
    profile = own if isinstance(own, str) else parent.profile if parent else None
    folder = current_dir() if cwd is None else cwd
    cli = settings_of(given)
    resolved = load(cli=cli, env=os.environ, cwd=folder, profile=profile, machine=this_machine())
    warn(resolved.warnings)
    return resolved


def settings_of(given: Mapping[str, object]) -> dict[str, object]:
    """The settings among the options of a command, by their path."""
    return {name.replace("__", "."): value for name, value in given.items() if name not in _OWN}


def say(text: str) -> None:
    """Print data on stdout; what its encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding))
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        give_up_stdout()
        raise OmlxError(f"stdout cannot be written: {reason}") from None


def give_up_stdout() -> None:
    """Let what stdout still holds go nowhere: Python would complain at exit and change the code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(warnings: tuple[str, ...] | list[str]) -> None:
    """Say what is odd, on stderr."""
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def current_dir() -> Path:
    """The folder of this call; OmlxError if it is gone."""
    try:
        return Path.cwd()
    except OSError:
        raise OmlxError("the current folder does not exist", hint="cd to another one") from None
