"""Reference pages in Markdown: the commands, and the settings.

Knows nothing about where they are kept.
"""

from collections.abc import Iterator, Sequence

from omlx.cli.docs.commands import Page
from omlx.settings.leaf import Kind, Leaf, leaves
from omlx.settings.value import expected, show

_MADE = "<!-- Made by scripts/gen from the live commands and settings; edit those. -->"
_SETTINGS_HEAD = """\
Every setting is a key in a TOML file, a flag of `omlx serve`, and an environment variable.
From strong to weak, a value comes from

1. a flag;
2. a variable `OMLX_*` (an empty one counts as not set);
3. a table `[model."pattern"]` in any of the files below, for the models that the pattern matches;
4. the profile that `--profile NAME` or `OMLX_PROFILE` names: `profiles/NAME.toml` in `OMLX_HOME`,
   else one that comes with omlx;
5. `omlx.toml` in the folder that omlx is started in;
6. `config.toml` in `OMLX_HOME` (`~/.omlx`);
7. what ships with a model: `omlx.toml` beside its weights, then the table for its family that
   comes with omlx, then its `generation_config.json`;
8. the default.

`omlx config show --origin` prints each value, who set it, and what it shadows. Unknown keys, wrong
types and unknown units are errors. Sizes have units (`"8GB"` is decimal, `"512MiB"` binary), and
so have durations (`"250ms"`, `"10s"`, `"15m"`, `"2h"`, `"7d"`). A relative path in a file starts
at the folder of that file, one in a flag or variable at the current folder.

Settings marked *per model* may also stand in a table for some models:

```toml
[model."SmolLM2*"]
context_window = 4096
sampling.temperature = 0.2
```

A pattern may have `*`, `?` and `[abc]`; one without `/` also matches the last part of an id with
`/`. Where several patterns of one file match, the one with the most letters wins.
"""


def cli_page(pages: Sequence[Page]) -> str:
    """The page of all commands."""
    return "\n".join(_cli_lines(pages))


def _cli_lines(pages: Sequence[Page]) -> Iterator[str]:
    yield f"{_MADE}\n\n# Commands\n"
    yield (
        "stdout is data, stderr is talk. Exit status: 0 success, 1 failure, 2 wrong usage or "
        "settings, 130 interrupted.\n"
    )
    for page in pages:
        yield f"## {page.command}\n"
        yield f"```\n{page.command} {page.usage}\n```\n"
        for paragraph in page.paragraphs:
            yield f"{paragraph}\n"
        for word, help_text in page.subcommands:
            yield f"- `{page.command} {word}`: {help_text}"
        if page.subcommands:
            yield ""
        for title, options in page.sections:
            yield f"{title}:\n"
            yield from (f"- `{option.spec}`: {option.help}" for option in options)
            yield ""


def settings_page() -> str:
    """The page of all settings."""
    return "\n".join(_settings_lines())


def _settings_lines() -> Iterator[str]:
    yield f"{_MADE}\n\n# Settings\n"
    yield _SETTINGS_HEAD
    group = None
    for leaf in sorted(leaves().values(), key=lambda leaf: leaf.group != ""):
        if leaf.group != group:
            group = leaf.group
            yield f"\n## {f'[{group}]' if group else 'Top level'}\n"
        yield from _setting(leaf)


def _setting(leaf: Leaf) -> Iterator[str]:
    flag = leaf.flag
    if leaf.kind is Kind.BOOL:
        flag = f"{leaf.flag}`, `--no-{leaf.flag.removeprefix('--')}"
    mark = ", per model" if leaf.option.per_model else ""
    yield f"**`{leaf.key}`** ({expected(leaf)}{_limits(leaf)}; default {_default(leaf)}{mark})  "
    yield f"{leaf.option.help}  "
    yield f"`{flag}`, `{leaf.env}`\n"


def _default(leaf: Leaf) -> str:
    text = show(leaf, leaf.default)
    return text if text == "none" else f"`{text}`"


def _limits(leaf: Leaf) -> str:
    low, high = leaf.option.low, leaf.option.high
    if low is not None and high is not None:
        return f", {show(leaf, low)} to {show(leaf, high)}"
    if high is not None:
        return f", at most {show(leaf, high)}"
    return "" if low is None else f", at least {show(leaf, low)}"
