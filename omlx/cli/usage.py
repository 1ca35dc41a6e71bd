"""`omlx usage`: what was served, what the cache saved, and what that wrote to the disk.

Knows nothing about how totals are kept or shown.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options
from omlx.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from omlx.storage.usage import Usage

_PERIODS = {"today": 1, "week": 7}


@click.command(cls=SettingsCommand)
@click.argument("period", required=False, type=click.Choice([*_PERIODS]))
@click.option(
    "--days",
    type=click.IntRange(1, 1100),
    metavar="N",
    help="So many days, today included. [default: 7]",
)
@json_option
@settings_options("cache.disk_endurance")
@click.pass_context
def usage(
    ctx: click.Context, *, period: str | None, days: int | None, as_json: bool, **given: object
) -> None:
    """Show what was served, by model, client and API key.

    Also the tokens that the cache saved, the time that their prefill would have taken, and bytes
    written to the disk, with the days that it lasts at this rate. The totals are kept by day (UTC)
    with the journal, and stay when its rows go. No server needs to run.
    """
    from omlx.cli.view.usage import Period, make_report, usage_json, usage_text

    if period is not None and days is not None:
        raise UsageError(f"--days and {period} exclude each other", hint="give one of them")
    num_days = days or _PERIODS[period or "week"]
    resolved = resolve(ctx, given)
    today = datetime.now(UTC).date()
    first = today - timedelta(days=num_days - 1)
    found, all_time = _read(resolved.journal_path, first.isoformat())
    report = make_report(
        found,
        all_time,
        period=Period(first.isoformat(), today.isoformat(), num_days),
        endurance_bytes=resolved.settings.cache.disk_endurance,
    )
    say(usage_json(report) if as_json else usage_text(report))


def _read(path: "Path", first_day: str) -> "tuple[Usage, Usage]":
    """The totals of the days that are asked for, and of all days, for rates of prefill."""
    from omlx.storage.usage import Usage, read_usage

    whole = read_usage(path, "")
    return Usage(
        [one for one in whole.requests if one.day >= first_day],
        [one for one in whole.disk if one.day >= first_day],
    ), whole
