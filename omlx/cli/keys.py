"""`omlx key create`, `omlx key list` and `omlx key revoke`: the API keys that clients may send.

Knows nothing about servers; one that runs reads the file again when it has changed.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from omlx.cli.options import json_option, say
from omlx.errors import OmlxError, UsageError
from omlx.units import parse_duration

_LIMIT = click.IntRange(1, 10**9)


@click.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(["inference", "admin"]),
    default="inference",
    help="What it opens: the models, or the admin API as well. [default: inference]",
)
@click.option("--rpm", type=_LIMIT, metavar="N", help="Most requests a minute.")
@click.option("--tpm", type=_LIMIT, metavar="N", help="Most tokens a minute, in and out.")
@click.option("--concurrent", type=_LIMIT, metavar="N", help="Most requests at the same time.")
@click.option("--expires", metavar="DURATION", help="Of no use any more after this time, as 30d.")
def create(
    *,
    name: str,
    scope: str,
    rpm: int | None,
    tpm: int | None,
    concurrent: int | None,
    expires: str | None,
) -> None:
    """Make an API key and print it.

    It is printed this once: keys.toml in OMLX_HOME (~/.omlx) keeps a salted hash only. Servers that
    run know it at once. From the first key on, all but GET / and /health needs one.
    """
    from omlx.settings.keys import Limits, Scope, change_keys, new_key, with_key

    now = datetime.now(UTC)
    try:
        until = None if expires is None else now + timedelta(seconds=parse_duration(expires))
        limits = Limits(rpm, tpm, concurrent)
        key, sent = new_key(name, now=now, scope=Scope(scope), limits=limits, expires=until)
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from None
    path = _path()
    try:
        change_keys(path, with_key(key))
    except ValueError as error:
        raise OmlxError(str(error), hint="omlx key revoke takes it away") from None
    except OSError as error:
        raise _unwritten(path, error) from None
    say(sent)
    click.echo(f"note: this is the only time that the key {name} is shown", err=True)


@click.command(name="list")
@json_option
def list_keys(*, as_json: bool) -> None:
    """List the API keys, with their first characters.

    The keys themselves are not kept anywhere.
    """
    from omlx.cli.view.text import columns
    from omlx.settings.keys import read_keys

    now = datetime.now(UTC)
    shown = [key.shown(now) for key in read_keys(_path())]
    if as_json:
        say(json.dumps({"keys": shown}, indent=2))
    elif shown:
        say(columns([_TITLES, *(_row(one) for one in shown)]))
    else:
        click.echo("no API keys\nhint: omlx key create NAME makes one", err=True)


@click.command()
@click.argument("name")
def revoke(*, name: str) -> None:
    """Take an API key away.

    Servers that run refuse it at once; requests of it that run go on. One that had keys stays
    locked without any until it is started again.
    """
    from omlx.settings.keys import change_keys, without_key

    path = _path()
    try:
        change_keys(path, without_key(name))
    except KeyError:
        hint = "omlx key list shows those there are"
        raise OmlxError(f"there is no API key {name!r}", hint=hint) from None
    except OSError as error:
        raise _unwritten(path, error) from None


_TITLES = ("NAME", "KEY", "SCOPE", "RPM", "TPM", "CONCURRENT", "CREATED", "EXPIRES")


def _row(shown: dict[str, object]) -> tuple[str, ...]:
    from omlx.settings.keys import MARK

    limits = [shown[name] for name in ("requests_per_minute", "tokens_per_minute", "concurrent")]
    until = str(shown["expires"] or "never")[:10]
    return (
        str(shown["name"]),
        f"{MARK}{shown['prefix']}...",
        str(shown["scope"]),
        *("-" if limit is None else str(limit) for limit in limits),
        str(shown["created"])[:10],
        f"{until}, over" if shown["has_expired"] else until,
    )


def _path() -> Path:
    from omlx.settings import places

    return places.keys_path(places.home(os.environ))


def _unwritten(path: Path, error: OSError) -> OmlxError:
    return OmlxError(f"{path} cannot be written: {error.strerror or error}")
