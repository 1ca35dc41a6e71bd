"""`omlx bench concurrency`: streams side by side.

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


@click.command(cls=SettingsCommand)
@tokens_option("--streams", (1, 2, 4, 8, 16), "So many streams at the same time, in turn.")
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(16, 1_000_000),
    default=128,
    show_default=True,
    help="Tokens of each prompt.",
)
@click.option(
    "--decode",
    metavar="N",
    type=click.IntRange(2, 100_000),
    default=96,
    show_default=True,
    help="Tokens of each answer.",
)
@rounds_option(3)
@server_options
@result_options
@model_options
@click.pass_context
def concurrency(
    ctx: click.Context,
    *,
    streams: tuple[int, ...],
    tokens: int,
    decode: int,
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
    """Measure streams side by side, and how near they come to what memory allows.

    For each number of streams: decode of all together while all of them run, decode of each, the
    times between tokens, and the time to the first one. The bandwidth fraction compares decode
    with what the memory's measured rate allows if each step read the weights once and did nothing
    else. A server is started with an empty store, unless --url names one that runs.
    """
    from omlx.bench.concurrency import Options, measure_local, measure_remote
    from omlx.bench.measured import Model

    if url is None and key is not None:
        raise UsageError("--key needs --url")
    place = check_html(html)
    options = Options(streams, tokens, decode, rounds, seed)
    with ending_servers(), reporting("concurrency") as on_step:
        if url is not None:
            target = remote_target(ctx, given, url, model, key)
            words = model_words(ctx, given, model)
            report = measure_remote(target, words, options, on_step=on_step)
        else:
            entry = local_model(ctx, given, model, demo=demo)
            found = Model(entry.id, entry.path, entry.context_window)
            report = measure_local(found, options, on_step=on_step)
    show(report, as_json=as_json, html=place)
