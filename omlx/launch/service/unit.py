"""A service as the text of a systemd unit, and back.

Knows nothing about systemd beyond the syntax of its files (systemd.syntax(7), systemd.service(5)).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from omlx.errors import ServerError
from omlx.launch.service.spec import NUM_FILES, Spec, Written

STEPS_SINCE = 254  # the version of systemd that can lengthen the pause between two starts
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}
_UNESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s"]+)', re.DOTALL)
_PARTS = re.compile(r"\\x([0-9a-fA-F]{2})|\\(.)|(%%)", re.DOTALL)
_LIMITS = "StartLimitIntervalSec={interval}\nStartLimitBurst={burst}"
# Pauses of 2, 4, 8, 16, 30, 60 and 120 s: eight starts, then it stays down.
_WITH_STEPS = "RestartSec=2s\nRestartSteps=6\nRestartMaxDelaySec=2min"
_WITHOUT_STEPS = "RestartSec=15s"


def quoted(word: str) -> str:
    """A word of a command line or of Environment= that is taken as it is."""
    if "\0" in word or any("\ud800" <= char <= "\udfff" for char in word):
        raise ServerError(
            f"{word!r} can't be written in a unit file", hint="it must be text without NUL"
        )
    shown = "".join(_ESCAPES.get(char) or _shown(char) for char in word)
    return f'"{shown}"'


def _shown(char: str) -> str:
    return char if ord(char) >= 32 and ord(char) != 127 else f"\\x{ord(char):02x}"


def words_of(text: str) -> tuple[str, ...]:
    """The words of such a line."""
    return tuple(_unquoted(a if a or not b else b) for a, b in _WORD.findall(text))


def _unquoted(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return "%" if match[3] else _UNESCAPES.get(match[2], match[2])

    return _PARTS.sub(plain, text)


def plain_path(path: Path) -> str:
    """A path where the whole rest of the line is one, and nothing but % is special."""
    text = str(path)
    is_odd = any(ord(char) < 32 or ord(char) == 127 for char in text)
    if is_odd or text != text.strip() or text.endswith("\\"):
        raise ServerError(
            f"the folder {text!r} can't be written in a unit file",
            hint="OMLX_HOME names another one, without line breaks or blanks at its ends",
        )
    return text.replace("%", "%%")


def unit_text(spec: Spec, *, version: int | None) -> str:
    """The unit, for a version of systemd; None is the newest."""
    has_steps = version is None or version >= STEPS_SINCE
    limits = ("10min", 8) if has_steps else ("5min", 8)
    output = plain_path(spec.output)
    # A colon before the command: a dollar sign is one.
    command = ":" + " ".join(map(quoted, spec.words))
    return "\n".join(
        [
            "[Unit]",
            "Description=omlx, a server of local language models",
            "Documentation=man:omlx(1)",
            _LIMITS.format(interval=limits[0], burst=limits[1]),
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={command}",
            f"WorkingDirectory={plain_path(spec.home)}",
            *_environment(spec.environment),
            f"StandardOutput=append:{output}",
            f"StandardError=append:{output}",
            "Restart=on-failure",
            _WITH_STEPS if has_steps else _WITHOUT_STEPS,
            "# Settings that are wrong do not become right by themselves.",
            "RestartPreventExitStatus=2",
            f"TimeoutStopSec={spec.stop_s:.0f}s",
            "KillMode=mixed",
            f"LimitNOFILE={NUM_FILES}:524288",
            "UMask=0077",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _environment(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"Environment={quoted(f'{name}={value}')}"


def read_unit(text: str) -> Written:
    """What a unit says of what it runs."""
    words: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    output: Path | None = None
    for line in text.splitlines():
        key, _, value = line.partition("=")
        match key.strip():
            case "ExecStart":
                words = words_of(value.strip().lstrip(":-@+!"))
            case "Environment":
                pairs = (word.partition("=") for word in words_of(value.strip()))
                environment |= {name: text for name, _, text in pairs}
            case "StandardError":
                name = value.strip().removeprefix("append:").replace("%%", "%")
                output = Path(name) if name.startswith("/") else None
            case _:
                pass
    return Written(words, environment, output)
