"""`omlx key add`, `list` and `remove`: the API keys that clients may send.

Knows nothing about how they are kept or checked.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options
from omlx.errors import OmlxError

if TYPE_CHECKING:
    from pathlib import Path

_LIMIT = click.IntRange(1, 10**9)


def _path(ctx: click.Context, given: Mapping[str, object]) -> "Path":
    return resolve(ctx, given).keys_path


@click.command(cls=SettingsCommand)
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(["inference", "admin"]),
    default="inference",
    help="What it opens: the models, or /admin, too.",
)
@click.option("--rpm", type=_LIMIT, help="Most requests a minute.")
@click.option("--tpm", type=_LIMIT, help="Most tokens a minute, of prompts and answers.")
@click.option("--concurrent", type=_LIMIT, help="Most requests at the same time.")
@click.option("--expires", metavar="DURATION", help="How long it is of use, such as 30d.")
@settings_options()
@click.pass_context
def add(
    ctx: click.Context,
    *,
    name: str,
    scope: str,
    rpm: int | None,
    tpm: int | None,
    concurrent: int | None,
    expires: str | None,
    **given: object,
) -> None:
    """Make a key and print it, this once.

    Only a hash of it is kept.
    """
    from omlx.settings.keys import Limits, Scope, change_keys, new_key, with_key
    from omlx.units import parse_duration

    now = datetime.now(UTC)
    try:
        ends = None if expires is None else now + timedelta(seconds=parse_duration(expires))
        limits = Limits(rpm, tpm, concurrent)
        key, sent = new_key(name, now=now, scope=Scope(scope), limits=limits, expires=ends)
        change_keys(_path(ctx, given), with_key(key))
    except (ValueError, OverflowError) as error:
        raise OmlxError(str(error)) from None
    except OSError as error:
        raise OmlxError(f"the key cannot be kept: {error.strerror or error}") from None
    say(sent)


@click.command("list", cls=SettingsCommand)
@json_option
@settings_options()
@click.pass_context
def list_keys(ctx: click.Context, *, as_json: bool, **given: object) -> None:
    """List the keys."""
    from omlx.settings.keys import read_keys

    now = datetime.now(UTC)
    keys = [key.shown(now) for key in read_keys(_path(ctx, given))]
    if as_json:
        say(json.dumps({"keys": keys}, indent=2))
        return
    for key in keys:
        end = "has expired" if key["has_expired"] else f"expires {key['expires'] or 'never'}"
        say(f"{key['name']}  {key['prefix']}...  {key['scope']}  {end}")


@click.command(cls=SettingsCommand)
@click.argument("name")
@settings_options()
@click.pass_context
def remove(ctx: click.Context, *, name: str, **given: object) -> None:
    """Remove a key.

    A running server refuses it from then on.
    """
    from omlx.settings.keys import change_keys, without_key

    try:
        change_keys(_path(ctx, given), without_key(name))
    except KeyError:
        raise OmlxError(f"there is no key {name!r}", hint="omlx key list shows them") from None
    except OSError as error:
        raise OmlxError(f"the keys cannot be changed: {error.strerror or error}") from None
