"""`omlx top`: a running server live, in a terminal or as text.

Knows nothing about how a frame looks.
"""

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, settings_options
from omlx.errors import UsageError
from omlx.units import parse_duration

_LEAST_S = 0.1


@click.command(cls=SettingsCommand)
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="The server on this port.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    metavar="DURATION",
    help="Time from frame to frame. [default: 1s in a terminal, 10s elsewhere]",
)
@json_option
@settings_options("server.api_key")
@click.pass_context
def top(
    ctx: click.Context,
    *,
    port: int | None,
    once: bool,
    interval: str | None,
    as_json: bool,
    **given: object,
) -> None:
    """Watch a running server: requests, tiers, hits and engines.

    First come the three figures that tell how well it does: uncached tokens per turn by client,
    TTFT with its parts, disk bytes written and evicted in the last 24 hours, each with its
    verdict. Then come both tiers, every request with its stage and progress, and the engines.

    In a terminal q or Ctrl-C ends it. Where stdout is no terminal, frames come as text, and with
    --json as one line each. A server that goes away is waited for.
    """
    from omlx.cli.following import follow

    interval_s = None if interval is None else _seconds(interval)
    resolved = resolve(ctx, given)
    follow(resolved, port=port, interval_s=interval_s, is_once=once, as_json=as_json)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--interval: {error}") from None
    if seconds < _LEAST_S:
        raise UsageError(f"--interval: {text!r} is too short", hint="the least is 100ms")
    return seconds
