"""`omlx kernel build` and `status`: kernels for this GPU, each with its verdict.

Knows nothing about how kernels are verified: it happens in processes of their own.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options

if TYPE_CHECKING:
    from omlx.cli.view.kernels import Listing

_TASK = "omlx.models.kernel_task"


class KernelName(click.ParamType[str]):
    """The name of a kernel."""

    name = "kernel"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The name, if there is such a kernel."""
        from omlx.custom_kernels.names import NAMES

        if value not in NAMES:
            self.fail(f"there is no kernel {value!r}: they are {', '.join(NAMES)}", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so."""
        from omlx.custom_kernels.names import NAMES

        return [CompletionItem(name) for name in NAMES if name.startswith(incomplete)]


@click.command(cls=SettingsCommand)
@click.argument("names", metavar="[NAME]...", nargs=-1, type=KernelName())
@click.option("--again", is_flag=True, help="Also those that are verified on this device already.")
@json_option
def build(*, names: tuple[str, ...], again: bool, as_json: bool) -> int:
    """Compile, verify and time kernels on this device.

    Each kernel is compiled by mlx (no compiler is needed), compared with an exact result on random
    inputs of all shapes and types that it takes, and timed against plain mlx. Its verdict is kept
    in OMLX_HOME and holds for this source, device and version of mlx: models use a kernel only
    where it is verified and faster. Without NAME those are built that have no good verdict yet. A
    server takes new verdicts when it loads a model. The exit code is 1 if a kernel failed.
    """
    from omlx.cli.view.kernels import read_listing, to_json, to_text

    listing = read_listing(_ask())
    if listing.device is None:
        note = "mlx computes on the CPU here, and kernels are for GPUs: there is nothing to build"
        say(to_json(listing, {}) if as_json else note)
        return 0
    chosen = [
        one.name
        for one in listing.kernels
        if one.is_for_device and (one.name in names if names else again or not one.is_verified)
    ]
    for one in listing.kernels:
        if one.name in names and not one.is_for_device:
            click.echo(f"{one.name} is not built: {one.reason}", err=True)
    for name in chosen:
        listing = _build(name)
    if as_json:
        say(to_json(listing, {}))
    else:
        say(to_text(listing, {}))
        if not chosen and not names:
            click.echo("nothing was to be built; --again verifies the kernels anew", err=True)
    return 1 if any(one.name in chosen and not one.is_verified for one in listing.kernels) else 0


def _ask(build: str | None = None, died: str | None = None, progress: Any = None) -> dict[str, Any]:
    """What the process of kernels says; EngineError where it dies."""
    from omlx.engine.task import run_task
    from omlx.settings.places import home, kernels_path

    records = str(kernels_path(home(os.environ)))
    return run_task(_TASK, {"records": records, "build": build, "died": died}, progress=progress)


def _build(name: str) -> "Listing":
    """All kernels after one was built; a process that dies of a kernel is that kernel's verdict."""
    from omlx.cli.quantize import reporting
    from omlx.cli.view.kernels import read_listing
    from omlx.errors import EngineError

    try:
        with reporting("kernel") as report:
            return read_listing(_ask(name, progress=report))
    except EngineError as error:
        return read_listing(_ask(name, error.message))


@click.command(cls=SettingsCommand)
@json_option
@settings_options("server.api_key")
@click.pass_context
def status(ctx: click.Context, *, as_json: bool, **given: object) -> None:
    """Show each kernel: verified, faster and in use, or why not.

    The speed-up is the time of plain mlx over that of the kernel, the least and the largest of all
    shapes that were timed; where it is not above 1 plain mlx is used. --json has each. In use are
    those of models that a running server has loaded.
    """
    from omlx.cli.view.kernels import read_listing, to_json, to_text

    listing = read_listing(_ask())
    in_use = _in_use(ctx, given)
    say(to_json(listing, in_use) if as_json else to_text(listing, in_use))


def _in_use(ctx: click.Context, given: Mapping[str, object]) -> dict[str, list[str]]:
    """The models that each kernel serves, in servers that tell it."""
    from omlx.cli.running import state_dir
    from omlx.cli.view.plain import maps_of, text_of, texts_of
    from omlx.client import get_json
    from omlx.errors import ServerError
    from omlx.launch.background import find

    servers = find(state_dir()).servers
    key = resolve(ctx, given).settings.server.api_key if servers else None
    found: dict[str, list[str]] = {}
    for server in servers:
        try:
            answer = get_json(
                server.address, "/admin/api/status", api_key=key, certificate=server.certificate
            )
        except ServerError:
            continue
        for model in maps_of(answer, "models"):
            for name in texts_of(model, "kernels"):
                found.setdefault(name, []).append(text_of(model, "id"))
    return found
