"""`omlx model list` and `omlx model pull`: the models that are there, and getting one.

Knows nothing about files of models.
"""

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options, warn

DEMO = "demo"


@click.command(name="list", cls=SettingsCommand)
@click.option(
    "--fits",
    is_flag=True,
    help="Also say what fits into memory, and with how many tokens of context.",
)
@click.option(
    "--context",
    type=click.IntRange(1, 10**9),
    metavar="N",
    help="Tokens of context for --fits; default 8192, or the model's window.",
)
@json_option
@settings_options("models.", "engine.memory_limit")
@click.pass_context
def list_models(
    ctx: click.Context, *, fits: bool, context: int | None, as_json: bool, **given: object
) -> None:
    """List the models that can be served.

    That is every folder below the model folders with a config.json and safetensors files, and the
    newest snapshot of every such model in the Hugging Face cache, if no folder is named.
    Profiles of models and aliases come after them.

    --fits reckons from sizes alone: the weights, and what the tokens of one request take, against
    what engine.memory_limit leaves of this machine.
    """
    from omlx.cli.found import NO_MODELS_HINT, discover_models, searched
    from omlx.cli.view import models as view
    from omlx.log import setup
    from omlx.models.fits import DEFAULT_CONTEXT
    from omlx.models.names import names_of

    setup("error")  # what was skipped is told below
    resolved = resolve(ctx, given)
    found = discover_models(resolved)
    warn([f"skipped {problem.path}: {problem.reason}" for problem in found.problems])
    names = names_of(found.models, resolved)
    warn(names.check())
    ceiling = resolved.ceiling_bytes if fits or context else None
    listing = view.Listing(found, names, ceiling, context or DEFAULT_CONTEXT)
    if as_json:
        say(view.list_json(listing))
    elif found.models:
        say(view.list_text(listing))
    else:
        click.echo(f"no models in {searched(resolved)}\nhint: {NO_MODELS_HINT}", err=True)


@click.command(cls=SettingsCommand)
@click.argument("name", metavar="OWNER/NAME[@REVISION]|demo")
@click.option(
    "--any-architecture",
    is_flag=True,
    help="Also fetch a model whose architecture the installed mlx-lm does not know.",
)
@click.option(
    "--into-hub-cache",
    is_flag=True,
    help="Put it into the Hugging Face cache, where other tools find it, too.",
)
@settings_options("models.dir")
@click.pass_context
def pull(
    ctx: click.Context, *, name: str, any_architecture: bool, into_hub_cache: bool, **given: object
) -> None:
    """Get a model.

    It goes into the first model folder. OWNER/NAME is a repository of the Hugging Face hub (or of
    HF_ENDPOINT), at a branch, tag or commit if one is given; only what is needed to serve it is
    fetched, and verified. HF_TOKEN opens private and gated ones. demo is SmolLM2-135M-Instruct,
    93 MB to fetch and 540 MB on disk.

    The free space is checked first. If it breaks off, or is stopped with Ctrl-C, what was fetched
    is kept, and the same command goes on from there; until it is whole, the model is not listed.
    Pulling again fetches what has changed.
    """
    from omlx.cli.pull import PullOptions, pull_demo_model, pull_model
    from omlx.log import setup

    setup("error")
    resolved = resolve(ctx, given)
    if name == DEMO:
        say(str(pull_demo_model(resolved.model_dirs[0])))
    else:
        options = PullOptions(into_hub_cache, any_architecture)
        say(str(pull_model(name, resolved, options)))
