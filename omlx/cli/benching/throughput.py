"""`omlx bench throughput`: prefill and decode at growing prompts.

Knows nothing about how they are measured.
"""

import click

from omlx.cli.benching.options import (
    check_html,
    ending_servers,
    local_model,
    model_options,
    model_words,
    remote_target,
    reporting,
    result_options,
    rounds_option,
    server_options,
    show,
    tokens_option,
)
from omlx.cli.options import SettingsCommand
from omlx.errors import UsageError

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@click.command(cls=SettingsCommand)
@tokens_option("--tokens", _LENGTHS, "Lengths of the prompts; those beyond the window are left.")
@click.option(
    "--decode",
    metavar="N",
    type=click.IntRange(2, 100_000),
    default=64,
    show_default=True,
    help="Tokens to decode after each prompt.",
)
@click.option(
    "--only",
    type=click.Choice(["process", "http"]),
    help="Only without a server, in a process of its own, or only over HTTP.",
)
@rounds_option(3)
@server_options
@result_options
@model_options
@click.pass_context
def throughput(
    ctx: click.Context,
    *,
    tokens: tuple[int, ...],
    decode: int,
    only: str | None,
    rounds: int,
    url: str | None,
    key: str | None,
    seed: int,
    as_json: bool,
    html: str | None,
    model: str | None,
    demo: bool,
    **given: object,
) -> None:
    """Measure prefill and decode at growing prompts, in a process and over HTTP.

    Each prompt is new, so that no figure is of a prefix hit. Prefill is the prompt's tokens by the
    time to the first token, decode the tokens after the first by the time that they took. Over
    HTTP a server is started with an empty store, unless --url names one that runs.
    """
    from omlx.bench.measured import Model
    from omlx.bench.throughput import HTTP, IN_PROCESS, Options, measure_local, measure_remote

    if url is None and key is not None:
        raise UsageError("--key needs --url")
    if url is not None and only == "process":
        raise UsageError("--only process measures a model of this machine, without --url")
    place = check_html(html)
    options = Options(tokens, decode, rounds, seed)
    with ending_servers(), reporting("throughput") as on_step:
        if url is not None:
            target = remote_target(ctx, given, url, model, key)
            report = measure_remote(
                target, model_words(ctx, given, model), options, on_step=on_step
            )
        else:
            entry = local_model(ctx, given, model, demo=demo)
            transports = {"process": (IN_PROCESS,), "http": (HTTP,)}.get(only or "")
            report = measure_local(
                Model(entry.id, entry.path, entry.context_window),
                options,
                transports=transports or (IN_PROCESS, HTTP),
                on_step=on_step,
            )
    show(report, as_json=as_json, html=place)
