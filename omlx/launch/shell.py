"""A plan as lines for a shell, ready to copy.

Knows nothing about clients; what it is given holds no key.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from omlx.launch.plan import Mirror, Plan

_END = "OMLX_END"


def shell_lines(command: str, plan: Plan, folder: Path) -> str:
    """The files, the variables and the command of a plan."""
    lines: list[str] = [f"# {note}" for note in plan.notes]
    for mirror in plan.mirrors:
        lines.extend(_links(mirror, folder / mirror.name))
    for name, text in plan.files.items():
        lines.extend(_file(folder / name, text))
    if plan.unset:
        lines.append(f"unset {' '.join(plan.unset)}")
    lines.extend(exports(plan.env))
    lines.append(line([command, *plan.args]))
    return "\n".join(lines)


def exports(env: Mapping[str, str]) -> list[str]:
    """Variables as shell lines."""
    return [f"export {name}={_quote(value)}" for name, value in env.items()]


def line(argv: Sequence[str]) -> str:
    """A command as a shell line."""
    return " ".join(_quote(word) for word in argv)


def _quote(word: str) -> str:
    """A word for the shell; one that only asks for a variable stays as it is."""
    if word.startswith("$") and word[1:].isidentifier():
        return f'"{word}"'
    return shlex.quote(word)


def _links(mirror: Mirror, folder: Path) -> list[str]:
    here = shlex.quote(str(folder))
    own = " ".join(f"{here}/{shlex.quote(name)}" for name in mirror.own)
    lines = [f"mkdir -p -m 700 {here}", f"ln -sf {shlex.quote(str(mirror.source))}/* {here}/"]
    return [*lines, f"rm -rf {own}"] if own else lines


def _file(path: Path, text: str) -> list[str]:
    end = _END
    while end in text.splitlines():
        end += "_"
    return [
        f"mkdir -p -m 700 {shlex.quote(str(path.parent))}",
        f"cat > {shlex.quote(str(path))} <<'{end}'",
        text.rstrip("\n"),
        end,
    ]
