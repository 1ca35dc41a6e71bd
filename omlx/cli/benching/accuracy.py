"""`omlx bench accuracy`: how good a model's predictions are, alone or against a reference.

Knows nothing about how they are measured.
"""

from pathlib import Path

import click

from omlx.cli.benching.options import (
    check_html,
    ending_servers,
    local_model,
    model_options,
    reporting,
    result_options,
    show,
)
from omlx.cli.options import SettingsCommand


@click.command(cls=SettingsCommand)
@click.option(
    "--reference",
    metavar="ID",
    help="Compare with this model, by id or folder: the one before quantization, for example.",
)
@click.option(
    "--text",
    "texts",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False),
    help="A UTF-8 text to predict, several times for several; without it, one that comes with "
    "omlx: prose, code, other languages, tool calls.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(2, 10**7),
    default=8192,
    show_default=True,
    help="Tokens to predict at most, in equal shares of the texts.",
)
@click.option(
    "--context",
    metavar="N",
    type=click.IntRange(2, 2**17),
    default=512,
    show_default=True,
    help="Tokens that a model sees at once; each piece of a text begins anew.",
)
@click.option(
    "--tasks",
    metavar="FILE.jsonl",
    type=click.Path(dir_okay=False),
    help="Also ask these questions, multiple-choice or code; needs the extra 'eval'.",
)
@click.option(
    "--allow-code",
    is_flag=True,
    help="Run the code that the model writes for --tasks, as you, within limits.",
)
@result_options
@model_options
@click.pass_context
def accuracy(
    ctx: click.Context,
    *,
    reference: str | None,
    texts: tuple[str, ...],
    tokens: int,
    context: int,
    tasks: str | None,
    allow_code: bool,
    model: str | None,
    demo: bool,
    seed: int,
    as_json: bool,
    html: str | None,
    **given: object,
) -> None:
    """Measure how well a model predicts a text, alone or against a reference.

    Without --reference that is its perplexity. With it also KL(reference || model) in nats a token,
    the reverse, and how often both find the same token the likeliest. One model after the other
    runs in a process of its own; the reference's logits wait in a temporary file, 4 bytes for each
    token and entry of the vocabulary. On a CPU both are computed in float32.

    Nothing is drawn at random, so the same models and texts give the same figures; --seed is only
    noted.
    """
    from omlx.bench.accuracy import Options, check, named_texts
    from omlx.bench.accuracy import accuracy as measure
    from omlx.bench.items import Items, read_items

    target = check_html(html)
    entry = local_model(ctx, given, model, demo=demo)
    other = None if reference is None else local_model(ctx, given, reference, demo=False)
    options = Options(
        model=entry.path,
        model_id=entry.id,
        reference=None if other is None else other.path,
        reference_id="" if other is None else other.id,
        texts=named_texts([Path(text) for text in texts]),
        tokens=tokens,
        context=context,
        items=Items((), ()) if tasks is None else read_items(Path(tasks)),
        allow_code=allow_code,
        seed=seed,
    )
    check(options)
    with ending_servers(), reporting("accuracy") as report:
        found = measure(options, report)
    show(found, as_json=as_json, html=target)
