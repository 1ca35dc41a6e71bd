"""`omlx launch`: start a coding agent on a local model, or say how it is set up.

Knows nothing about any one client, or how a server is found.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from omlx.cli.arguments import Given, with_profile
from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options
from omlx.errors import UsageError

if TYPE_CHECKING:
    from omlx.cli.agents import Wish
    from omlx.launch.catalog import Client
    from omlx.launch.plan import Setup
    from omlx.launch.write import Writer
    from omlx.settings.build import Resolved

LIST = "list"
_PLACEHOLDER = "YOUR_API_KEY"


class ClientName(click.ParamType[str]):
    """The name of a client, completed from those that come with omlx."""

    name = "client"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The clients whose names begin so, and the word that lists them."""
        names = [LIST, *(path.stem for path in sorted(catalog_dir().glob("*.toml")))]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def catalog_dir() -> Path:
    """Where the files of the clients are."""
    from omlx.settings.places import data_dir

    return data_dir("profiles") / "clients"


@click.command(cls=SettingsCommand)
@click.argument("client", metavar="CLIENT|list", type=ClientName())
@click.argument("args", nargs=-1, metavar="[-- ARGS...]", type=click.UNPROCESSED)
@click.option("--model", metavar="NAME", help="Model to use; not needed where only one fits.")
@click.option("--small-model", metavar="NAME", help="Model for small tasks, such as titles.")
@click.option("--print", "is_print", is_flag=True, help="Only print what would be set and run.")
@click.option("--write", is_flag=True, help="Set the client up for good, in the user's own files.")
@click.option("--restore", is_flag=True, help="Put back what --write changed.")
@click.option(
    "--force",
    is_flag=True,
    help="Start a client of an unknown or too old version; write or restore files that were "
    "changed since.",
)
@json_option
@settings_options("server.port", "server.api_key", "models.dir")
@click.pass_context
def launch(
    ctx: click.Context,
    *,
    client: str,
    args: tuple[str, ...],
    model: str | None,
    small_model: str | None,
    is_print: bool,
    write: bool,
    restore: bool,
    force: bool,
    as_json: bool,
    **given: object,
) -> int:
    """Start a coding agent on a local model.

    omlx launch list shows the clients, and which are installed. The server that runs is used, or
    one is started in the background; the model is loaded before the client starts. What follows
    -- goes to the client.

    A client is set up for this run only: by variables, flags and files that are removed after it.
    Your own files are changed by --write alone, which shows what it changes and keeps what was
    there; --restore puts that back.
    """
    from omlx.launch.catalog import find_client, read_catalog

    _check_flags(client, {"--print": is_print, "--write": write, "--restore": restore}, as_json)
    clients = read_catalog(catalog_dir())
    if client == LIST:
        if args:
            raise UsageError(f"unexpected argument '{args[0]}' after list")
        return _list(clients, as_json=as_json)
    known = find_client(clients, client)
    options = with_profile(ctx, given)
    resolved = resolve(ctx, options)
    from omlx.cli.agents import Wish

    if restore:
        return _restore(known, resolved, force=force)
    wish = Wish(known, clients, args, model, small_model)
    if write:
        return _write(wish, resolved, force=force)
    if is_print or not known.is_agent:
        return _show(wish, resolved)
    return _start(wish, resolved, options, force=force)


def _check_flags(client: str, modes: dict[str, bool], as_json: bool) -> None:
    given = [flag for flag, is_given in modes.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} do not go together")
    if as_json and client != LIST:
        raise UsageError("--json goes with omlx launch list only")
    if given and client == LIST:
        raise UsageError(f"{given[0]} needs the name of a client")


def _list(clients: "dict[str, Client]", *, as_json: bool) -> int:
    import os
    from concurrent.futures import ThreadPoolExecutor

    from omlx.cli.view import clients as view
    from omlx.launch.detect import detect

    agents = [client for client in clients.values() if client.is_agent]
    env = dict(os.environ)
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as threads:
        found = list(threads.map(detect, agents, [env] * len(agents)))
    rows = list(zip(agents, found, strict=True))
    editors = [client for client in clients.values() if not client.is_agent]
    say(view.as_json(rows, editors) if as_json else view.as_text(rows, editors))
    return 0


def _start(wish: "Wish", resolved: "Resolved", options: Given, *, force: bool) -> int:
    from omlx.cli import agents
    from omlx.launch.detect import detect
    from omlx.launch.mirror import adopt, link
    from omlx.launch.plan import with_certificate
    from omlx.launch.recipes import RECIPES
    from omlx.launch.run import environment, folder_of, run, write_files
    from omlx.launch.served import base_url, load, offers

    env = agents.variables()
    executable = agents.executable(wish.client, detect(wish.client, env), force=force)
    server = agents.running(resolved)
    if server is None:
        wish = agents.choose_before_start(wish, resolved)
        server = agents.start_server(resolved, options)
    key = resolved.settings.server.api_key
    base = base_url(server.address)
    chosen = agents.choose(wish, offers(server, key), may_ask=agents.on_terminal())
    agents.warn_if_tight(wish.client, chosen)
    for model in dict.fromkeys((chosen.model, chosen.small_model)):
        with agents.waiting(f"loading {model}"):
            load(server, model, key)
    with folder_of(runs_dir(resolved), wish.client.name) as folder:
        setup = agents.setup(wish, chosen, base, folder=folder, key=key, resolved=resolved)
        recipe = RECIPES[wish.client.name]
        assert recipe.plan is not None, wish.client.name
        plan = with_certificate(recipe.plan(setup), setup)
        link(folder, plan.mirrors)
        write_files(folder, plan.files)
        agents.say_notes(plan.notes)
        try:
            return run(executable, plan, environment(plan, env), setup.home)
        finally:
            adopt(folder, plan.mirrors)


def _show(wish: "Wish", resolved: "Resolved") -> int:
    from omlx.launch.plan import with_certificate
    from omlx.launch.recipes import RECIPES
    from omlx.launch.shell import shell_lines

    setup = _setup_without_start(wish, resolved)
    recipe = RECIPES[wish.client.name]
    if recipe.says is not None:
        say(recipe.says(setup))
    if recipe.plan is not None:
        plan = with_certificate(recipe.plan(setup), setup)
        say(shell_lines(wish.client.executables[0], plan, setup.folder))
    return 0


def _setup_without_start(wish: "Wish", resolved: "Resolved") -> "Setup":
    """A setup for what is printed or written; it holds a placeholder instead of the key."""
    from omlx.cli import agents
    from omlx.launch.served import base_url, offers

    server = agents.running(resolved)
    if server is None:
        base, known = agents.configured_address(resolved), agents.on_disk(resolved)
    else:
        base = base_url(server.address)
        known = offers(server, resolved.settings.server.api_key)
    chosen = agents.choose(wish, known, may_ask=agents.on_terminal())
    agents.warn_if_tight(wish.client, chosen)
    key = _PLACEHOLDER if resolved.settings.server.api_key else None
    folder = runs_dir(resolved) / wish.client.name
    return agents.setup(wish, chosen, base, folder=folder, key=key, resolved=resolved)


def runs_dir(resolved: "Resolved") -> Path:
    """Where the folders of clients are while they run."""
    return resolved.state_dir / "launch" / "run"


def _write(wish: "Wish", resolved: "Resolved", *, force: bool) -> int:
    from omlx.launch.recipes import RECIPES

    name, recipe = wish.client.name, RECIPES[wish.client.name]
    if recipe.edits is None:
        raise UsageError(
            f"there is no file to write for {wish.client.title}",
            hint=f"omlx launch {name} --print shows what it takes",
        )
    setup = _setup_without_start(wish, resolved)
    writer = _writer(resolved)
    changes = writer.prepare(recipe.edits(setup))
    if not changes:
        click.echo(f"{wish.client.title} is set up so already", err=True)
        return 0
    say("".join(change.diff for change in changes).rstrip("\n"))
    writer.write(name, changes, force=force)
    for change in changes:
        click.echo(f"wrote {change.path}", err=True)
    click.echo(f"omlx launch {name} --restore puts back what was there", err=True)
    if setup.key is not None and recipe.key_variable:
        click.echo(f"{recipe.key_variable} has to hold the server's key", err=True)
    return 0


def _restore(client: "Client", resolved: "Resolved", *, force: bool) -> int:
    for path in _writer(resolved).restore(client.name, force=force):
        say(f"restored {path}")
    return 0


def _writer(resolved: "Resolved") -> "Writer":
    from omlx.launch.write import Writer

    return Writer(resolved.state_dir / "launch")
