"""`omlx config show`, `get` and `path`: settings, their values, and who set them.

Knows nothing about what settings do.
"""

import json
from typing import TYPE_CHECKING

import click

from omlx.cli.assignments import leaves_of
from omlx.cli.configuring import config_path
from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options, warn
from omlx.errors import UsageError

if TYPE_CHECKING:
    from omlx.cli.view.settings import SettingLine
    from omlx.settings.build import Resolved


@click.command(cls=SettingsCommand)
@click.option("--origin", is_flag=True, help="Also print who set each value, and what it shadows.")
@click.option(
    "--model", "model_id", metavar="ID", help="Print what holds for one model, or model:profile."
)
@json_option
@settings_options("models.dir")
@click.pass_context
def show(
    ctx: click.Context, *, origin: bool, model_id: str | None, as_json: bool, **given: object
) -> None:
    """Print every setting of this folder and user.

    The order of layers is: flags, OMLX_* variables, the profile that is asked for, omlx.toml in
    this folder, config.toml in OMLX_HOME, the profile of this machine, what ships with a model,
    defaults. Secrets are masked.
    """
    from omlx.cli.view import settings as view

    resolved = resolve(ctx, given)
    values = _lines(resolved, model_id)
    if as_json:
        say(view.as_json(values, resolved, with_origin=origin))
    else:
        say(view.as_text(values, with_origin=origin))


@click.command()
@click.argument("name")
@click.option("--origin", is_flag=True, help="Also print who set it, and what that shadows.")
@click.option(
    "--model", "model_id", metavar="ID", help="Print what holds for one model, or model:profile."
)
@json_option
@settings_options("models.dir")
@click.pass_context
def get(
    ctx: click.Context,
    *,
    name: str,
    origin: bool,
    model_id: str | None,
    as_json: bool,
    **given: object,
) -> None:
    """Print one setting, or those of one table.

    NAME is as in omlx config show, such as server.port or server. One value is printed alone.
    With --json it is always said who set it. Secrets are masked.
    """
    from omlx.cli.view import settings as view

    leaves = leaves_of(name)
    resolved = resolve(ctx, given)
    values = [line for line in _lines(resolved, model_id) if line.leaf in leaves]
    if not values:
        raise UsageError(f"{name} is not a setting of one model", hint="leave --model out")
    if as_json:
        say(view.as_json(values, resolved, with_origin=True))
    elif len(leaves) == 1 and not origin:
        say(view.value_text(values[0]))
    else:
        say(view.as_text(values, with_origin=origin))


@click.command()
@click.option("--all", "is_all", is_flag=True, help="All files that are read, the strongest first.")
@json_option
def path(*, is_all: bool, as_json: bool) -> None:
    """Print where config.toml is, which omlx config set writes.

    It need not be there yet.
    """
    own, project = config_path(), config_path(is_project=True)
    if as_json:
        files = [{"path": str(one), "exists": one.is_file()} for one in (project, own)]
        say(json.dumps({"config": str(own), "files": files}, indent=2))
    else:
        say("\n".join(map(str, (project, own) if is_all else (own,))))


def _lines(resolved: "Resolved", model_id: str | None) -> "list[SettingLine]":
    """The settings, or those that hold for a model; warnings go to stderr."""
    from omlx.cli.view import settings as view

    if model_id is None:
        return view.setting_lines(resolved.settings, resolved.origins, resolved.shadowed)
    from omlx.cli.found import discover_models
    from omlx.models.names import names_of

    named = names_of(discover_models(resolved).models, resolved).find(model_id)
    if named is None:
        warn([f"no model {model_id!r} is in the model folders; its name alone counts"])
        model = resolved.for_model(model_id, None)
    else:
        entry = named.entry
        model = resolved.for_model(entry.id, entry.path, profile=named.profile)
    warn(model.warnings)
    return view.setting_lines(model, model.origins, model.shadowed)
