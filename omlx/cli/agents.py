"""What a launch needs before a client starts: a server, a model that fits, and the client itself.

Knows nothing about how any one client is set up.
"""

import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.options import warn
from omlx.errors import ModelError, OmlxError, ServerError, UsageError

if TYPE_CHECKING:
    from omlx.cli.arguments import Given
    from omlx.client import RunningServer
    from omlx.launch.catalog import Client
    from omlx.launch.detect import Found
    from omlx.launch.plan import Setup
    from omlx.launch.served import Offer
    from omlx.settings.build import Resolved

_ANSWER_S = 20.0
_POLL_S = 0.2
_STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    client: "Client"
    clients: Mapping[str, "Client"]
    args: tuple[str, ...]
    model: str | None
    small_model: str | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The models of a launch; `window` is that of the main one."""

    model: str
    small_model: str
    window: int


def running(resolved: "Resolved") -> "RunningServer | None":
    """The server to use: the one on the port of the settings, else any other; ServerError.

    A port that was typed is meant: no other one is taken then. One that loads a model counts; one
    that runs and does not answer is waited for.
    """
    from omlx.launch.background import find

    servers, port = list(find(resolved.state_dir).servers), resolved.settings.server.port
    if is_typed(resolved, "server.port"):
        servers = [one for one in servers if one.port == port]
    servers.sort(key=lambda one: one.port != port)
    if not servers:
        return None
    deadline = time.monotonic() + _ANSWER_S
    while True:
        words = [_health(server, resolved) for server in servers]
        for server, word in zip(servers, words, strict=True):
            if word and word != _STOPPING:
                return server
        if _STOPPING in words:
            return None
        if time.monotonic() >= deadline:
            raise ServerError(
                f"process {servers[0].pid} at {servers[0].address} does not answer",
                hint="omlx restart replaces it",
            )
        time.sleep(_POLL_S)


def _health(server: "RunningServer", resolved: "Resolved") -> str:
    """The word of a server that answers; empty if it does not."""
    from omlx.client import ask_health

    try:
        said = ask_health(server, api_key=resolved.settings.server.api_key)
    except ServerError:
        return ""
    return str(said.get("status") or "unknown")


def start_server(resolved: "Resolved", options: "Given") -> "RunningServer":
    """A server that is started in the background, once it answers; ServerError."""
    from omlx.cli.running import stop_command
    from omlx.cli.start import begin

    click.echo("no server runs yet; one is started in the background", err=True)
    server = begin(resolved, options).server
    click.echo(f"omlx serves at {server.address}; {stop_command(server)} ends it", err=True)
    return server


def is_typed(resolved: "Resolved", path: str) -> bool:
    """Whether a setting was given on the command line."""
    from omlx.settings.layers import OriginKind

    return resolved.origins[path].kind is OriginKind.CLI


def configured_address(resolved: "Resolved") -> str:
    """Where a server of these settings would be reached."""
    from omlx.launch.served import base_url

    settings = resolved.settings.server
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "https" if settings.tls_cert else "http"
    return base_url(f"{scheme}://{host}:{settings.port}")


def setup(
    wish: Wish,
    chosen: Chosen,
    base: str,
    *,
    folder: Path,
    key: str | None,
    resolved: "Resolved",
) -> "Setup":
    """What the client is told."""
    from omlx.launch.plan import Setup

    env = variables()
    is_https = base.startswith("https:")
    home = Path(env["HOME"]) if env.get("HOME") else Path.home()
    return Setup(
        base,
        chosen.model,
        chosen.small_model,
        chosen.window,
        folder=folder,
        home=home,
        key=key,
        args=wish.args,
        env=env,
        certificate=resolved.settings.server.tls_cert if is_https else None,
    )


def say_notes(notes: Sequence[str]) -> None:
    """Say what the user should know of a plan."""
    for note in notes:
        click.echo(f"note: {note}", err=True)


def choose_before_start(wish: Wish, resolved: "Resolved") -> Wish:
    """The wish with its models named, by what is on the disk: no server is started for none."""
    chosen = choose(wish, on_disk(resolved), may_ask=on_terminal())
    return replace(wish, model=chosen.model, small_model=chosen.small_model)


def choose(wish: Wish, offers: Sequence["Offer"], *, may_ask: bool) -> Chosen:
    """The models of this launch; OmlxError where none fits or the user has to say which."""
    model = _named(wish.model, offers) if wish.model else _only(wish, offers, may_ask=may_ask)
    window = _window(model)
    _check_fit(wish, model.name, window)
    small = _named(wish.small_model, offers) if wish.small_model else model
    return Chosen(model.name, small.name, window)


def _check_fit(wish: Wish, model: str, window: int) -> None:
    """ModelError where the first request of the client can't fit."""
    from omlx.launch.fits import Fit, fit, need, those_that_fit

    client = wish.client
    if fit(client, window) is Fit.NOT:
        fitting = ", ".join(one.name for one in those_that_fit(wish.clients.values(), window))
        raise ModelError(
            f"{client.title} needs a window of {need(client):,} tokens or more (its first request "
            f"takes about {client.first_request_tokens:,}), and that of {model} is {window:,}",
            hint=f"clients that fit this model: {fitting or 'none'}; "
            "omlx model list shows other models and their windows",
        )


def warn_if_tight(client: "Client", chosen: Chosen) -> None:
    """Say that little is left of the window once the client has said its own."""
    from omlx.launch.fits import Fit, fit

    if fit(client, chosen.window) is Fit.TIGHT:
        need = client.first_request_tokens
        text = f"{client.title} takes about {need:,} tokens before the first word of yours; "
        warn([f"{text}the window of {chosen.model} is {chosen.window:,}"])


def _window(offer: "Offer") -> int:
    if offer.window is None:
        raise ModelError(
            f"nothing says how large the window of {offer.name} is",
            hint=f'set context_window in the [model."{offer.name}"] table of config.toml',
        )
    return offer.window


def _named(name: str, offers: Sequence["Offer"]) -> "Offer":
    import difflib

    for offer in offers:
        if offer.name == name:
            return offer
    names = [offer.name for offer in offers]
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" (did you mean '{near[0]}'?)" if near else ""
    raise ModelError(f"there is no model '{name}'{guess}", hint=f"found: {', '.join(names)}")


def _only(wish: Wish, offers: Sequence["Offer"], *, may_ask: bool) -> "Offer":
    """The one model that fits, or the one that the user picks."""
    from omlx.launch.fits import Fit, fit

    main = [offer for offer in offers if offer.is_main]
    fitting = [
        offer
        for offer in main
        if offer.window is not None and fit(wish.client, offer.window) is not Fit.NOT
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and main:
        return max(main, key=lambda offer: offer.window or 0)  # whose window the error tells
    if not main:
        raise ModelError("the server has no model", hint="omlx model pull gets one")
    if may_ask:
        from omlx.cli.view.pick import pick

        return fitting[pick([f"{one.name}  {one.window:,} tokens" for one in fitting])]
    names = ", ".join(offer.name for offer in fitting)
    raise UsageError("several models are served", hint=f"--model takes one of {names}")


def on_terminal() -> bool:
    """Whether someone can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def on_disk(resolved: "Resolved") -> list["Offer"]:
    """What a server would offer if one ran."""
    from omlx.cli.found import discover_models, no_models
    from omlx.launch.served import Offer
    from omlx.models.names import names_of

    found = discover_models(resolved)
    if not found.models:
        raise no_models(resolved)
    offers: list[Offer] = []
    for name, named in names_of(found.models, resolved).listed():
        entry = named.entry
        settings = resolved.for_model(entry.id, entry.path, profile=named.profile)
        limits = [w for w in (settings.context_window, entry.context_window) if w]
        offers.append(Offer(name, min(limits, default=None), name == entry.id))
    return offers


@contextmanager
def waiting(text: str) -> Generator[None]:
    """Say on stderr what is waited for; on a terminal it moves, and is gone after it."""
    if not sys.stderr.isatty():
        click.echo(f"{text} ...", err=True)
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def executable(client: "Client", found: "Found", *, force: bool) -> Path:
    """The client's executable; OmlxError with the command that mends what is wrong."""
    from omlx.launch.detect import State

    needs = f" ({client.needs})" if client.needs else ""
    mend = f"{client.install}{needs}"
    if found.path is None:
        raise OmlxError(f"{client.title} is not installed: {found.reason}", hint=mend)
    if found.state is State.READY:
        return found.path
    if found.state is State.SLOW:
        warn([f"{client.title}: {found.reason}, so it may be too old"])
        return found.path
    if force:
        return found.path
    if found.state is State.TOO_OLD:
        raise OmlxError(
            f"{client.title} {found.version} at {found.path} is too old: {found.reason}",
            hint=f"{mend}, or --force starts it all the same",
        )
    raise OmlxError(
        f"{client.title} at {found.path} does not work: {found.reason}",
        hint=f"{mend}, or --force starts it all the same",
    )


def variables() -> dict[str, str]:
    """The user's environment."""
    return dict(os.environ)
