"""`omlx bench cache`: the time to the first token by where a prefix comes from.

Knows nothing about how it is measured.
"""

import click

from omlx.cli.benching.options import (
    Sizes,
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
)
from omlx.cli.options import SettingsCommand
from omlx.errors import UsageError

_KINDS = ("full", "mla", "window", "state", "hybrid")
_RATES = "100MB,500MB,2GB"


@click.command(cls=SettingsCommand)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(32, 1_000_000),
    default=2048,
    show_default=True,
    help="Tokens of each prompt.",
)
@click.option(
    "--kinds",
    metavar="KIND,…",
    default=",".join(_KINDS),
    show_default=True,
    help="Kinds of layers of the tiny random models that are measured without --model.",
)
@click.option(
    "--rates",
    metavar="SIZE,…",
    type=Sizes(),
    default=_RATES,
    show_default=True,
    help="Also with disks that move no more than this in a second; none leaves them out.",
)
@rounds_option(3)
@server_options
@result_options
@model_options
@click.pass_context
def cache(
    ctx: click.Context,
    *,
    tokens: int,
    kinds: str,
    rates: tuple[int, ...],
    rounds: int,
    url: str | None,
    key: str | None,
    seed: int,
    as_json: bool,
    html: str | None,
    model: str | None,
    demo: bool,
    **given: object,
) -> int:
    """Measure the time to the first token by where a prefix comes from.

    Each round has a fresh process and an empty store: the first request, a miss, a hit in memory,
    a hit on disk with the files dropped from the page cache, one after a restart, the same on
    slower disks, and with memory for half of the prompts. Without --model it takes a tiny random
    model of each kind of layers: full attention, latent attention (mla), sliding windows,
    recurrent state, and a hybrid. Of a server at --url only a miss and a repeat can be measured.
    The exit code is 1 if a hit was none.
    """
    from omlx.bench import tiers
    from omlx.bench.measured import Model
    from omlx.bench.result import has_failed

    if url is None and key is not None:
        raise UsageError("--key needs --url")
    place = check_html(html)
    chosen = tuple(dict.fromkeys(name.strip() for name in kinds.split(",")))
    unknown = [name for name in chosen if name not in _KINDS]
    if unknown:
        raise UsageError(f"--kinds: {unknown[0]!r} is none of {', '.join(_KINDS)}")
    options = tiers.Options(tokens, rates, chosen, rounds, seed)
    with ending_servers(), reporting("cache") as on_step:
        if url is not None:
            target = remote_target(ctx, given, url, model, key)
            words = model_words(ctx, given, model)
            report = tiers.measure_remote(target, words, options, on_step=on_step)
        elif model is None and not demo:
            report = tiers.measure_kinds(options, on_step=on_step)
        else:
            entry = local_model(ctx, given, model, demo=demo)
            found = Model(entry.id, entry.path, entry.context_window)
            report = tiers.measure_model(found, options, on_step=on_step)
    show(report, as_json=as_json, html=place)
    return 1 if has_failed(report.checks) else 0
