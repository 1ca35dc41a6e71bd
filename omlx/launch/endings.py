"""What is said and done when a server that was started does not come to answer.

Knows nothing about state files.
"""

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from omlx.errors import ServerError
from omlx.launch.system import Machine, Member

_MAX_READ = 64_000
_NUM_LINES = 12
_TERM_S = 5.0
_POLL_S = 0.1
_CAUSES = ("Fatal Python error", "Traceback ", "terminate called")  # what stands above many lines
_WARNING = re.compile(r"\S+ (?:WARNING|ERROR) \S+ (.*)")


def died(code: int, log: Path, start_of_log: int) -> ServerError:
    """The error of a server that ended before it answered: its own words, where it had some."""
    lines = _lines(log, start_of_log)
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    if errors and code > 0:
        return ServerError("; ".join(errors), hint="; ".join([*hints, f"its log is {log}"]))
    how = f"with exit code {code}" if code >= 0 else f"by {_name(-code)}"
    return ServerError(
        f"omlx serve ended {how} before it answered" + _quoted(lines), hint=f"its log is {log}"
    )


def no_answer(pid: int, seconds: float, log: Path, start_of_log: int) -> ServerError:
    """The error of a server that took too long and was ended."""
    return ServerError(
        f"omlx serve did not answer within {seconds:.0f} s; process {pid} was ended"
        + _quoted(_lines(log, start_of_log)),
        hint=f"its log is {log}",
    )


def last_line(log: Path, start_of_log: int) -> str:
    """The newest line of a log from an offset on."""
    lines = _lines(log, start_of_log)
    return lines[-1] if lines else ""


def warnings(log: Path, start_of_log: int) -> list[str]:
    """What a log warns of, from an offset on."""
    found = (_WARNING.match(line) for line in _lines(log, start_of_log))
    return [f"warning: {match[1]}" for match in found if match]


def end_family(machine: Machine, family: Sequence[Member], number: int = signal.SIGTERM) -> int:
    """End processes; how many were still there. After SIGTERM, what stays is killed."""
    num_hit = sum([machine.signal(one, number) for one in family])
    if number == signal.SIGKILL:
        return num_hit
    limit = machine.now() + _TERM_S
    while machine.now() < limit and any(machine.signal(one, 0) for one in family):
        machine.pause(_POLL_S)
    for one in family:
        machine.signal(one, signal.SIGKILL)
    return num_hit


def _quoted(lines: Sequence[str]) -> str:
    shown = list(lines[-_NUM_LINES:])
    if causes := [line for line in lines[:-_NUM_LINES] if line.startswith(_CAUSES)]:
        shown = [causes[-1], "...", *shown]
    return "; its last words:\n" + "\n".join(f"  {line}" for line in shown) if shown else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _lines(log: Path, start_of_log: int) -> list[str]:
    """The last lines of a log from an offset on."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(min(start_of_log, end), end - _MAX_READ))
            text = file.read(_MAX_READ).decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()]
