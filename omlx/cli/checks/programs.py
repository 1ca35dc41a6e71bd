"""Servers, the service, the journal, and the agents that are installed.

Knows nothing about requests.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from omlx import __version__
from omlx.cli.checks.finding import Finding, Look, broken, ok, warning
from omlx.errors import OmlxError, ServerError


def check_service(look: Look) -> Iterator[Finding]:
    """A service that fails, was edited, or is not this installation's."""
    from omlx.cli.last_error import last_words
    from omlx.launch.service.service import installed, oddities
    from omlx.launch.service.spec import Word

    if look.supervisor is None:
        return
    try:
        for text in oddities(look.supervisor, look.home, look.executable):
            is_gone = text.endswith("which is gone")
            fix = "omlx service install makes it this one; uninstall ends it"
            yield broken("service", text, fix) if is_gone else warning("service", text, fix)
        service = installed(look.home, look.supervisor)
        if service is None:
            return
        state = service.state()
    except ServerError as error:
        yield warning("service", error.message, error.hint or "omlx service status")
        return
    if state.word in (Word.FAILED, Word.WAITING):
        said = last_words(service.output(look.home)) or f"exit code {state.exit_code}"
        fix = "omlx logs shows more; then omlx start"
        yield broken("service", f"the service ends again and again: {said}", fix)
    elif service.is_edited:
        text = f"{service.path} was edited by hand, and is {state.word.value}"
        yield warning("service", text, "omlx service install --force writes it anew")
    else:
        yield ok("service", f"{service.supervisor.kind}, {state.word.value}")


def check_servers(look: Look) -> Iterator[Finding]:
    """State files of servers that are gone, and servers of another version."""
    from omlx.launch.background import clean, find

    found = find(look.resolved.state_dir)
    for server in found.servers:
        text = f"{server.address} is omlx {server.version}, process {server.pid}"
        if server.version != __version__:
            yield warning("servers", f"{text}; this is {__version__}", "omlx restart")
        else:
            yield ok("servers", text)

    def remove() -> str:
        clean(look.resolved.state_dir)
        return ""

    for stale in found.stale:
        text = f"{stale.path} stands for no server: {stale.reason}"
        yield warning("servers", text, "omlx stop, or omlx doctor --fix, removes it", remove)


def check_journal(look: Look) -> Iterator[Finding]:
    """Whether the journal can be read."""
    from omlx.storage.history import History

    path = look.resolved.journal_path
    if not look.resolved.settings.journal.enabled:
        fix = "omlx config unset journal.enabled"
        yield warning("journal", "the journal is off: nobody can say why a prompt missed", fix)
    elif path.exists():
        try:
            History(path).last()
        except OmlxError as error:
            yield broken("journal", error.message, f"mv '{path}' elsewhere; a new one is begun")


def check_clients(look: Look) -> Iterator[Finding]:
    """The agents that are installed, and those that are too old."""
    from omlx.launch.catalog import read_catalog
    from omlx.launch.detect import State, detect
    from omlx.settings.places import data_dir

    ready: list[str] = []
    agents = [c for c in read_catalog(data_dir("profiles") / "clients").values() if c.is_agent]
    with ThreadPoolExecutor(len(agents)) as pool:  # some take seconds to say their version
        states = list(pool.map(partial(detect, env=look.env), agents))
    for client, found in zip(agents, states, strict=True):
        if found.state is State.READY:
            ready.append(f"{client.name} {found.version}")
        elif found.state is State.TOO_OLD:
            text = f"{client.title} {found.version} is too old: it {found.reason}"
            yield warning("clients", text, client.install or "install it again")
        elif found.state in (State.BROKEN, State.SLOW):
            text = f"{client.title}: {found.reason}"
            yield warning("clients", text, f"{_name(found.path)} --version must print its version")
    yield ok("clients", f"ready: {', '.join(ready)}" if ready else "no agent is installed")


def _name(path: Path | None) -> str:
    return "it" if path is None else path.name


CHECKS = (check_service, check_servers, check_journal, check_clients)
