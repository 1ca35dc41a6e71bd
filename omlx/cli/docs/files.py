"""The files that are made from commands and settings: their texts, writing and checking them.

Knows nothing about how a text comes about.
"""

from collections.abc import Mapping
from pathlib import Path

from click.shell_completion import ShellComplete, get_completion_class

from omlx.cli.docs import man, markdown
from omlx.cli.docs.commands import pages
from omlx.cli.main import omlx
from omlx.settings.sample import sample_toml

_SHELLS = ("bash", "zsh", "fish")
_OWNED = ("man/*.1", "completions/*")


def texts() -> dict[str, str]:
    """Every made file by its place in the repository; the same on every machine."""
    commands = pages(omlx)
    made = {f"man/{man.file_name(page)}": man.man_page(page, commands) for page in commands}
    made |= {f"completions/omlx.{shell}": _completion(shell) for shell in _SHELLS}
    made["docs/reference/cli.md"] = markdown.cli_page(commands)
    made["docs/reference/settings.md"] = markdown.settings_page()
    made["profiles/base.toml"] = sample_toml()
    return {place: text.rstrip("\n") + "\n" for place, text in made.items()}


def stale(root: Path, made: Mapping[str, str]) -> list[str]:
    """The places below `root` that differ from what they should hold, or should not be there."""
    wrong = [place for place, text in made.items() if _read(root / place) != text]
    there = [path for pattern in _OWNED for path in root.glob(pattern)]
    extra = [path.relative_to(root).as_posix() for path in there]
    return sorted({*wrong, *(place for place in extra if place not in made)})


def write(root: Path, made: Mapping[str, str]) -> list[str]:
    """Make the files below `root` what they should be (mutates it); the places changed."""
    changed = stale(root, made)
    for place in changed:
        path = root / place
        if place in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[place], encoding="utf-8")
        else:
            path.unlink()
    return changed


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _completion(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None, shell
    # The base class' source: bash's own would start a shell to look at its version.
    return ShellComplete.source(kind(omlx, {}, "omlx", "_OMLX_COMPLETE"))
