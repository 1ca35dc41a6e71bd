"""`omlx bench agent`: traces of coding agents, replayed against a server.

Knows nothing about how they are replayed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    server_options,
    show,
)
from omlx.cli.options import SettingsCommand
from omlx.errors import UsageError
from omlx.units import parse_duration

if TYPE_CHECKING:
    from omlx.bench.agent import Replay, Replayed
    from omlx.bench.client import Target
    from omlx.bench.insight import Insight
    from omlx.bench.result import Report
    from omlx.bench.trace import Trace

_AUTO = "auto"


class Scale(click.ParamType[float | None]):
    """A number from 0 to 1, or "auto"."""

    name = "scale"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """The number; None for auto."""
        if value is None or value == _AUTO:
            return None
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number <= 1:
            self.fail(f"{value!r} is neither auto nor a number above 0, at most 1", param, ctx)
        return number


class Duration(click.ParamType[float]):
    """Seconds, or a number with a unit, as 30s or 2m."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The seconds."""
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(cls=SettingsCommand)
@click.argument("traces", metavar="[TRACES]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--agents",
    metavar="N",
    type=click.IntRange(1, 256),
    help="So many agents at once, one trace each, over again; default: as many as traces.",
)
@click.option(
    "--turns", metavar="N", type=click.IntRange(1), help="Only the first turns of each trace."
)
@click.option(
    "--think",
    metavar="X",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Wait between turns, the traces' times by X; 0 doesn't wait.",
)
@click.option(
    "--max-think",
    metavar="DURATION",
    type=Duration(),
    default="1m",
    show_default=True,
    help="The longest time between the beginnings of two turns that is waited for.",
)
@click.option(
    "--scale",
    metavar="X|auto",
    type=Scale(),
    default=_AUTO,
    show_default=True,
    help="Make all sizes smaller; auto so far that the model's window holds them.",
)
@click.option(
    "--window",
    metavar="N",
    type=click.IntRange(256),
    help="Tokens of the model's window, where the server doesn't say.",
)
@click.option(
    "--replies",
    type=click.Choice(["trace", "server"]),
    default="trace",
    show_default=True,
    help="What later prompts hold as answers: text of the trace's size, or what was answered.",
)
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=32,
    show_default=True,
    help="Tokens that are generated in a turn at most.",
)
@server_options
@model_options
@result_options
@click.pass_context
def agent(ctx: click.Context, **given: Any) -> None:
    """Replay traces of coding agents, any number of them at once.

    TRACES are files or folders of such; without any, three that come with omlx. The conversations
    have the sizes, times and common prefixes of the traces, and text from a seed. Reported are
    tokens computed in each turn (uncached) beside those that had to be (new), the time to first
    token, hit rate and bytes written, by where the prefix came from, in total and turn by turn.

    A server is started for it, with an empty store and the model that --model or --demo names;
    --url takes one that runs.
    """
    as_json, url = given.pop("as_json"), given.pop("url")
    if url is not None and given["demo"]:
        raise UsageError("--url and --demo exclude each other")
    if url is None and given["window"] is not None:
        raise UsageError("--window needs --url: the window of a model here is known")
    if url is None and given["key"] is not None:
        raise UsageError("--key needs --url")
    page = check_html(given.pop("html"))
    options = {name: given.pop(name) for name in _OPTIONS}
    options["traces"] = _traces(options["traces"])
    with ending_servers():
        report = _own(ctx, options, given) if url is None else _remote(ctx, url, options, given)
    show(report, as_json=as_json, html=page)


_OPTIONS = (
    "traces", "agents", "turns", "think", "max_think", "scale", "window", "replies",
    "max_tokens", "key", "model", "demo", "seed",
)  # fmt: skip


def _own(ctx: click.Context, options: Mapping[str, Any], given: Mapping[str, Any]) -> "Report":
    """A replay against a server of this bench's own."""
    from omlx.bench.agentreport import agent_report
    from omlx.bench.insight import Insight
    from omlx.bench.measured import Model, server_facts
    from omlx.bench.servers import Serve, serving

    entry = local_model(ctx, given, options["model"], demo=options["demo"])
    words = Model(entry.id, entry.path, entry.context_window).words().whole
    replay = _replay(options, words, entry.context_window)
    serve = Serve((entry.path,), {"cache.min_free": 0})
    with serving(serve) as server:
        target = server.target(entry.id)
        replayed = _run(target, replay, Insight(target), is_fresh=True)
    return agent_report(replayed, replay, model=entry.id, sides={"omlx": server_facts(serve)})


def _remote(
    ctx: click.Context, url: str, options: Mapping[str, Any], given: Mapping[str, Any]
) -> "Report":
    """A replay against a server that runs."""
    from omlx.bench.agentreport import agent_report
    from omlx.bench.insight import Insight
    from omlx.bench.workload import Words

    target = remote_target(ctx, given, url, options["model"], options["key"])
    insight = Insight(target)
    window = options["window"] or insight.window()
    known = model_words(ctx, given, target.model)
    words = known or Words(lambda text: len(text.split()))
    replay = _replay(options, words.whole, window)
    replayed = _run(target, replay, insight, is_fresh=False)
    note = "the model's tokenizer is not here: a word was taken for a token"
    return agent_report(
        replayed,
        replay,
        model=target.model,
        sides={"server": {"url": url}},
        notes=[] if known else [note],
    )


def _traces(paths: Sequence[Path]) -> "tuple[Trace, ...]":
    """The traces that are named, or those that come with omlx."""
    from omlx.bench.trace import PACKAGED, find_traces, load_trace

    return tuple(load_trace(path) for path in find_traces(paths or [PACKAGED]))


def _replay(options: Mapping[str, Any], words: list[str], window: int | None) -> "Replay":
    from omlx.bench.agent import Replay, check_fits, fitting_scale

    traces = options["traces"]
    scale = options["scale"]
    if scale is None:
        scale = fitting_scale(
            traces, window=window, max_tokens=options["max_tokens"], num_turns=options["turns"]
        )
    replay = Replay(
        traces,
        words,
        scale=scale,
        num_agents=options["agents"] or len(traces),
        num_turns=options["turns"],
        think=options["think"],
        max_think_s=options["max_think"],
        is_real=options["replies"] == "server",
        max_tokens=options["max_tokens"],
        seed=options["seed"],
    )
    check_fits(replay, window)
    return replay


def _run(target: "Target", replay: "Replay", insight: "Insight", *, is_fresh: bool) -> "Replayed":
    from omlx.bench.agent import Agents
    from omlx.bench.step import Steps

    with reporting("agent") as on_step:
        steps = Steps(replay.total_turns, on_step)
        return Agents(target, replay, steps, is_fresh=is_fresh, insight=insight).run()
