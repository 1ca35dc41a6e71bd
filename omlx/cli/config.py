"""`omlx config show`: every setting, its value, and who set it.

Knows nothing about what settings do.
"""

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options, warn


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
    if model_id is None:
        values = view.setting_lines(resolved.settings, resolved.origins, resolved.shadowed)
    else:
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
        values = view.setting_lines(model, model.origins, model.shadowed)
    if as_json:
        say(view.as_json(values, resolved, with_origin=origin))
    else:
        say(view.as_text(values, with_origin=origin))
