"""All commands as a list of pages, each with what a writer needs.

Knows nothing about man pages or Markdown.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from omlx.cli.lazy import LazyGroup
from omlx.cli.options import section_of


@dataclass(frozen=True, slots=True)
class OptionText:
    """One option: how it is written, and what it does."""

    spec: str
    help: str


@dataclass(frozen=True, slots=True)
class Page:
    """One command; `words` are its names from omlx on."""

    words: tuple[str, ...]
    short_help: str
    usage: str
    paragraphs: tuple[str, ...]
    sections: tuple[tuple[str, tuple[OptionText, ...]], ...]
    subcommands: tuple[tuple[str, str], ...]

    @property
    def command(self) -> str:
        """What is typed."""
        return " ".join(self.words)


def pages(root: click.Command) -> list[Page]:
    """The root and all commands below it, parents first."""
    return list(_walk(root, None, "omlx"))


def _walk(command: click.Command, parent: click.Context | None, name: str) -> Iterator[Page]:
    settings: dict[str, Any] = dict(command.context_settings)
    with click.Context(command, parent, name, **settings) as ctx:
        yield _page(command, ctx)
        if isinstance(command, LazyGroup):
            for below in command.list_commands(ctx):
                sub = command.get_command(ctx, below)
                assert sub is not None, below
                yield from _walk(sub, ctx, below)


def _page(command: click.Command, ctx: click.Context) -> Page:
    sections: dict[str, list[OptionText]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and not isinstance(param, click.Argument):
            sections.setdefault(section_of(param), []).append(OptionText(*record))
    help_text = (command.help or "").strip()
    lazy = command.lazy.items() if isinstance(command, LazyGroup) else ()
    return Page(
        words=tuple(ctx.command_path.split(" ")),
        short_help=command.get_short_help_str(limit=200),
        usage=" ".join(command.collect_usage_pieces(ctx)),
        paragraphs=tuple(" ".join(part.split()) for part in help_text.split("\n\n")),
        sections=tuple((title, tuple(options)) for title, options in sections.items()),
        subcommands=tuple((below, entry.short_help) for below, entry in lazy),
    )
