"""`omlx model list` and `omlx model pull`: the models that are there, and getting one.

Knows nothing about files of models.
"""

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options, warn
from omlx.errors import UsageError

DEMO = "demo"


@click.command(name="list", cls=SettingsCommand)
@json_option
@settings_options("models.dir")
@click.pass_context
def list_models(ctx: click.Context, *, as_json: bool, **given: object) -> None:
    """List the models that can be served.

    That is every folder below the model folders with a config.json and safetensors files.
    """
    from omlx.cli.found import NO_MODELS_HINT, discover_models
    from omlx.cli.view import models as view
    from omlx.log import setup

    setup("error")  # what was skipped is told below
    resolved = resolve(ctx, given)
    found = discover_models(resolved)
    warn([f"skipped {problem.path}: {problem.reason}" for problem in found.problems])
    if as_json:
        say(view.list_json(found))
    elif found.models:
        say(view.list_text(found))
    else:
        folders = ", ".join(str(folder) for folder in resolved.model_dirs)
        click.echo(f"no models in {folders}\nhint: {NO_MODELS_HINT}", err=True)


@click.command(cls=SettingsCommand)
@click.argument("name", metavar="demo")
@settings_options("models.dir")
@click.pass_context
def pull(ctx: click.Context, *, name: str, **given: object) -> None:
    """Get a model.

    In this version that is demo: SmolLM2-135M-Instruct, 93 MB to fetch and 540 MB on disk,
    into the first model folder. What was fetched is kept for the next try if the rest fails.
    """
    if name != DEMO:
        raise UsageError(
            f"cannot pull {name!r}: only {DEMO!r} can be pulled in this version",
            hint="put other models into a folder, and name that with --model-dir",
        )
    from omlx.cli.pull import pull_demo_model

    resolved = resolve(ctx, given)
    say(str(pull_demo_model(resolved.model_dirs[0])))
