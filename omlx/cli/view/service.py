"""A service of the system as lines and as JSON.

Knows nothing about servers.
"""

from pathlib import Path

from omlx.cli.last_error import last_words
from omlx.launch.service.service import Installed
from omlx.launch.service.spec import State, Word

_DOWN = (Word.FAILED, Word.WAITING)
_SAYS = {
    Word.RUNNING: "runs",
    Word.STARTING: "is starting",
    Word.STOPPING: "is stopping",
    Word.WAITING: "has ended, and is started again after a pause",
    Word.FAILED: "has failed, and is not started again; omlx start does",
    Word.STOPPED: "is stopped; omlx start starts it",
}


def service_lines(service: Installed, state: State, home: Path) -> list[str]:
    """What a service is and how it stands; its last words where it is down."""
    lines = [f"service: {service.supervisor.kind}, {_SAYS[state.word]}"]
    lines.append(f"  file: {service.path}{' (edited by hand)' if service.is_edited else ''}")
    login = "starts at login" if state.at_login else "does not start at login"
    again = f"; started again {state.num_restarts} times" if state.num_restarts else ""
    lines.append(f"  {login}{again}")
    if state.word in _DOWN:
        lines.append(f"  ended with {_end(state.exit_code)}")
        if words := last_words(service.output(home)):
            lines.append(f"  last words: {words}")
    return lines


def service_object(service: Installed, state: State, home: Path) -> dict[str, object]:
    """The same for machines."""
    return {
        "kind": service.supervisor.kind,
        "file": str(service.path),
        "is_edited": service.is_edited,
        "state": state.word.value,
        "pid": state.pid,
        "restarts": state.num_restarts,
        "exit_code": state.exit_code,
        "at_login": state.at_login,
        "arguments": list(service.written.arguments),
        "output": str(service.output(home)),
        "last_words": last_words(service.output(home)) if state.word in _DOWN else None,
    }


def _end(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
