"""Man pages, one a command.

Knows nothing about where they are kept; without a date, so that they change only with the text.
"""

import re
from collections.abc import Iterator, Sequence

from omlx import __version__
from omlx.cli.docs.commands import OptionText, Page

_ESCAPES = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "~": "\\(ti"})
_EXIT_STATUS = (
    ("0", "success"),
    ("1", "failure"),
    ("2", "wrong usage or settings"),
    ("130", "interrupted"),
)
_ENVIRONMENT = (
    ("OMLX_HOME", "The folder of everything of the user's, instead of ~/.omlx."),
    ("OMLX_PROFILE", "A named set of settings, as --profile."),
    ("OMLX_*", "Every setting; omlx serve --help names them all."),
    ("NO_COLOR", "No colour in the dashboard."),
)
_FILES = (
    ("~/.omlx/config.toml", "Settings of the user."),
    ("./omlx.toml", "Settings of the folder that omlx is started in."),
    ("~/.omlx/profiles/NAME.toml", "Settings for --profile NAME."),
    ("~/.omlx/models/", "Models."),
    ("~/.omlx/cache/", "The disk tier of the prefix cache."),
)


def file_name(page: Page) -> str:
    """The name of a command's page."""
    return "-".join(page.words) + ".1"


def man_page(page: Page, pages: Sequence[Page]) -> str:
    """The page in roff."""
    return "\n".join(_lines(page, pages)) + "\n"


def _lines(page: Page, pages: Sequence[Page]) -> Iterator[str]:
    name = "-".join(page.words)
    yield f'.TH "{_escape(name.upper())}" "1" "" "omlx {__version__}" "omlx manual"'
    yield ".SH NAME"
    yield f"{_escape(name)} \\- {_escape(page.short_help.rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {_escape(page.command)}"
    yield _escape(page.usage)
    yield ".SH DESCRIPTION"
    for paragraph in page.paragraphs:
        yield ".PP"
        yield _prose(paragraph)
    for title, options in page.sections:
        yield ".SH OPTIONS" if title == "Options" else f'.SS "{title}"'
        for option in options:
            yield from _option(option)
    if page.subcommands:
        yield ".SH COMMANDS"
        for word, help_text in page.subcommands:
            yield from _entry(f"\\fB{_escape(word)}\\fR", help_text)
    yield from _closing(page)
    yield ".SH SEE ALSO"
    yield ",\n".join(f".BR {_escape('-'.join(p.words))} (1)" for p in _near(page, pages))


def _closing(page: Page) -> Iterator[str]:
    if len(page.words) == 1:
        yield ".SH ENVIRONMENT"
        for variable, meaning in _ENVIRONMENT:
            yield from _entry(f"\\fB{_escape(variable)}\\fR", meaning)
        yield ".SH FILES"
        for path, meaning in _FILES:
            yield from _entry(f"\\fI{_escape(path)}\\fR", meaning)
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_STATUS:
        yield from _entry(f"\\fB{code}\\fR", meaning)


def _near(page: Page, pages: Sequence[Page]) -> list[Page]:
    """The command above, and those directly below."""
    return [
        other
        for other in pages
        if other.words == page.words[:-1]
        or (other.words[:-1] == page.words and other.words != page.words)
    ]


def _option(option: OptionText) -> Iterator[str]:
    spec = re.sub(r"(?<![\w-])(--?[a-z-]+)", lambda m: f"\\fB{_escape(m[1])}\\fR", option.spec)
    yield from _entry(spec, option.help)


def _entry(term: str, meaning: str) -> Iterator[str]:
    yield ".TP"
    yield term
    yield _prose(meaning)


def _prose(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", _escape(text))


def _escape(text: str) -> str:
    escaped = text.translate(_ESCAPES)
    return "\\&" + escaped if escaped.startswith(".") else escaped
