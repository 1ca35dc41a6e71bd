"""`omlx bench compare`: the same work for several servers, as ratios.

Knows nothing about how they are measured.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omlx.cli.benching.options import (
    check_html,
    ending_servers,
    local_model,
    model_options,
    reporting,
    result_options,
    rounds_option,
    show,
    tokens_option,
)
from omlx.cli.options import SettingsCommand
from omlx.errors import UsageError
from omlx.units import parse_duration

if TYPE_CHECKING:
    from omlx.bench.course import Plan
    from omlx.bench.sides import Model, Side
    from omlx.models.locate import ModelEntry

CASES = ("cold", "again", "more", "restart", "agent", "streams", "memory")
_PEERS_DIR = "~/.cache/omlx-tests/peers"
_RESERVE = 128  # what templates may add to a prompt


@click.command(cls=SettingsCommand)
@click.option(
    "--peer", "peers", metavar="NAME", multiple=True,
    help="Start this server beside omlx: mlx-lm, vllm-mlx, rapid-mlx or llama-cpp.",
)  # fmt: skip
@click.option(
    "--recipe", "recipes", metavar="FILE", multiple=True,
    type=click.Path(dir_okay=False),
    help="Start a server by a recipe of your own.",
)  # fmt: skip
@click.option(
    "--url", "urls", metavar="NAME=URL", multiple=True,
    help="Ask a server that runs already.",
)  # fmt: skip
@click.option(
    "--url-model", "url_models", metavar="NAME=ID", multiple=True,
    help="What the server NAME of a --url calls the model; needed if it has several.",
)  # fmt: skip
@click.option(
    "--url-key", "url_keys", metavar="NAME=KEY", multiple=True,
    help="API key for the server NAME of a --url.",
)  # fmt: skip
@click.option(
    "--own/--no-own", default=True, help="Start omlx itself and compare the others with it."
)
@click.option(
    "--peers-dir", metavar="DIR", default=_PEERS_DIR, show_default=True,
    help="Where peers are installed, each in a venv of its name.",
)  # fmt: skip
@click.option(
    "--case", "cases", metavar="NAME", multiple=True, type=click.Choice(CASES),
    help="Measure only this: " + ", ".join(CASES) + ".",
)  # fmt: skip
@rounds_option(5)
@click.option(
    "--tokens", metavar="N", type=click.IntRange(64, 10**6), default=1024, show_default=True,
    help="How long the head is that prompts share.",
)  # fmt: skip
@tokens_option("--streams", (1, 2, 4, 8), "How many prompts at once.")
@click.option(
    "--reply", metavar="N", type=click.IntRange(2, 10**5), default=32, show_default=True,
    help="How many tokens each stream generates.",
)  # fmt: skip
@click.option(
    "--trace", "traces", metavar="PATH", multiple=True, type=click.Path(path_type=Path),
    help="A trace file or a folder of them for the case agent.",
)  # fmt: skip
@click.option(
    "--agent-tokens", metavar="N", type=click.IntRange(64, 10**6), default=1024, show_default=True,
    help="Scale traces so that no prompt is longer.",
)  # fmt: skip
@click.option(
    "--agent-turns", metavar="N", type=click.IntRange(1, 1000), default=4, show_default=True,
    help="How many turns of each trace.",
)  # fmt: skip
@click.option(
    "--limit", metavar="DURATION", default="5m", show_default=True,
    help="Give a side up that needs longer for one answer.",
)  # fmt: skip
@click.option("--total", metavar="DURATION", help="Begin no further round after so long.")
@model_options
@result_options
@click.pass_context
def compare(
    ctx: click.Context, *, model: str | None, demo: bool, seed: int, as_json: bool,
    html: str | None, rounds: int, total: str | None, **given: Any,
) -> int:  # fmt: skip
    """Give several servers the same work, and show how far one is from the other.

    Each round starts every side afresh, one at a time, on an empty folder. Peers are installed by
    scripts/peers. The exit code is 1 if a side fails.
    """
    from omlx.bench.compare import compare as run
    from omlx.bench.measured import Model
    from omlx.bench.result import has_failed

    page = check_html(html)
    seconds = None if total is None else _duration("--total", total)
    plan = _plan(given, seed)
    settings = {key: value for key, value in given.items() if "__" in key or key == "profile"}
    entry = local_model(ctx, settings, model, demo=demo)
    _check_window(plan, entry)
    words = Model(entry.id, entry.path, entry.context_window).words()
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as scratch, ending_servers():
        sides = _sides(given, _model(entry, Path(scratch)), max(plan.streams))
        began = time.monotonic()
        with reporting("compare") as on_step:
            report = run(
                sides,
                plan,
                words,
                num_rounds=rounds,
                model=entry.id,
                is_over=lambda: seconds is not None and time.monotonic() - began > seconds,
                on_step=on_step,
            )
    show(report, as_json=as_json, html=page)
    return 1 if has_failed(report.checks) else 0


def _plan(given: dict[str, Any], seed: int) -> "Plan":
    from omlx.bench.course import Plan
    from omlx.bench.trace import find_traces, load_trace

    cases = given["cases"] or CASES
    traces = tuple(load_trace(path) for path in find_traces(given["traces"]))
    if "agent" in given["cases"] and not traces:
        raise UsageError("--case agent needs --trace")
    return Plan(
        cases=tuple(case for case in CASES if case in cases),
        head_tokens=given["tokens"],
        streams=given["streams"],
        stream_reply=given["reply"],
        traces=traces,
        agent_tokens=given["agent_tokens"],
        agent_turns=given["agent_turns"],
        seed=seed,
        limit_s=_duration("--limit", given["limit"]),
    )


def _duration(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if seconds <= 0:
        raise UsageError(f"{option}: {text} is no time at all")
    return seconds


def _check_window(plan: "Plan", entry: "ModelEntry") -> None:
    needed, window = plan.most_tokens + _RESERVE, entry.context_window
    if window is not None and needed > window:
        raise UsageError(
            f"prompts of {needed:,} tokens do not fit the {window:,} of {entry.id}",
            hint="--tokens and --agent-tokens take smaller numbers",
        )


def _model(entry: "ModelEntry", scratch: Path) -> "Model":
    from omlx.bench.sides import Model

    return Model(entry.path, entry.id, entry.context_window or 4096, scratch)


def _sides(given: dict[str, Any], model: "Model", streams: int) -> "Sequence[Side]":
    """All sides in order, the one that the others are compared with first; errors at once."""
    from omlx.bench.recipes import load_recipe, shipped_recipe
    from omlx.bench.sides import OwnSide, PeerSide, with_venv

    sides: list[Side] = [OwnSide(model)] if given["own"] else []
    sides += _given_sides(given)
    recipes = [shipped_recipe(name) for name in given["peers"]]
    recipes += [load_recipe(Path(path).expanduser()) for path in given["recipes"]]
    for recipe in recipes:
        venv = with_venv(recipe, Path(given["peers_dir"]).expanduser())
        side = PeerSide(recipe, model, venv, streams)
        side.check()
        sides.append(side)
    names = [side.name for side in sides]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two sides are called {twice[0]}", hint="a recipe's name may be set")
    if len(sides) < 2:
        raise UsageError(
            "there is nothing to compare with", hint="--peer, --url and --recipe name servers"
        )
    return sides


def _given_sides(given: dict[str, Any]) -> "list[Side]":
    from omlx.bench.client import Target
    from omlx.bench.listing import model_names
    from omlx.bench.sides import GivenSide

    urls = _pairs("--url", given["urls"])
    models = _pairs("--url-model", given["url_models"], urls)
    keys = _pairs("--url-key", given["url_keys"], urls)
    sides: list[Side] = []
    for name, url in urls.items():
        model = models.get(name)
        if model is None:
            found = model_names(Target(url, "", keys.get(name), name))
            if len(found) != 1:
                shown = ", ".join(found[:8]) or "none"
                raise UsageError(f"--url-model {name}=ID says which model is meant: {shown}")
            model = found[0]
        sides.append(GivenSide(name, url, model, keys.get(name)))
    return sides


def _pairs(
    option: str, texts: Sequence[str], known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Texts like NAME=VALUE by their names, which must be among the known ones."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or not name.isprintable():
            raise UsageError(f"{option} takes NAME=…, not {text!r}")
        if known is not None and name not in known:
            raise UsageError(f"{option} {name}=… is of no --url")
        if name in found:
            raise UsageError(f"{option} has {name} twice")
        found[name] = value
    return found
