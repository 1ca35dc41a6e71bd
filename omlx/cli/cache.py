"""`omlx cache inspect` and `omlx cache prune`: what the prefix cache holds, and dropping of it.

Knows nothing about files or servers; the survey and the client do.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options, warn
from omlx.errors import StoreError, UsageError
from omlx.units import parse_duration, parse_size

if TYPE_CHECKING:
    from omlx.settings.build import Resolved

Number = TypeVar("Number", int, float)
Answer = TypeVar("Answer")


@click.command(cls=SettingsCommand)
@click.option(
    "--request",
    metavar="ID",
    help='Say why a request of the journal missed; "last" is the newest one.',
)
@click.option(
    "--prompt",
    metavar="FILE",
    help="Say what of the API body in a file would hit, and why no more.",
)
@click.option(
    "--against", metavar="FILE", help="With --prompt: compare with this body, not with the cache."
)
@click.option(
    "--key", metavar="NAME", help="With --prompt: what this API key has stored for itself alone."
)
@click.option("--live", is_flag=True, help="Watch a running server's cache and its last requests.")
@json_option
@settings_options("cache.dir", "cache.block_size", "models.dir", "server.api_key")
@click.pass_context
def inspect(
    ctx: click.Context,
    *,
    request: str | None,
    prompt: str | None,
    against: str | None,
    key: str | None,
    live: bool,
    as_json: bool,
    **given: object,
) -> None:
    """Show what the prefix cache holds, or why a prompt misses it.

    For each model: blocks, tails, tokens, bytes by tier, ages, hits, and bad files by reason.
    The disk tier is read from its folder; hits and the memory tier come from running servers.

    With --request or --prompt: the prompt's tokens by part, cached and not, and the first token
    that differs from what is stored, with the part of the body it lies in, what changed there,
    and the text on both sides. Parts count from 0, as in the body. A body may be of either API
    and may have tools. Nothing is run.
    """
    _check_choice(request, prompt, against, live=live)
    if key is not None and (prompt is None or against is not None):
        raise UsageError("--key needs --prompt, without --against")
    resolved = resolve(ctx, given)
    if live:
        from omlx.cli.watch import watch_server

        watch_server(resolved, as_json=as_json)
    elif request is not None or prompt is not None:
        salt = "" if key is None else _salt_of(key, resolved)
        _explain(resolved, request, prompt, against, salt=salt, as_json=as_json)
    else:
        _survey(resolved, as_json=as_json)


def _check_choice(
    request: str | None, prompt: str | None, against: str | None, *, live: bool
) -> None:
    if against is not None and prompt is None:
        raise UsageError("--against needs --prompt", hint="--prompt B.json --against A.json")
    chosen = [request is not None, prompt is not None, live]
    if sum(chosen) > 1:
        raise UsageError("--request, --prompt and --live exclude each other")


def _salt_of(name: str, resolved: "Resolved") -> str:
    """What the blocks of an API key are salted with, where keys share none."""
    from omlx.server.auth import grant_of
    from omlx.server.salt import cache_salt
    from omlx.settings.keys import read_keys

    for key in read_keys(resolved.keys_path):
        if key.name == name:
            return cache_salt({}, grant_of(key), isolate="key")
    raise UsageError(f"there is no API key {name!r}", hint="omlx key list shows them")


def _explain(
    resolved: "Resolved",
    request: str | None,
    prompt: str | None,
    against: str | None,
    *,
    salt: str,
    as_json: bool,
) -> None:
    from omlx.cli.explain import compare_prompts, explain_prompt, explain_request
    from omlx.cli.view.explain import explain_json, explain_text
    from omlx.client import running_servers

    if request is not None:
        found = explain_request(request, resolved)
    elif prompt is not None and against is not None:
        found = compare_prompts(Path(prompt), Path(against), resolved)
    else:
        assert prompt is not None
        found = explain_prompt(Path(prompt), resolved, salt=salt)
        if running_servers(resolved.state_dir):
            note = "note: a server is running: what only its memory tier holds is not known here"
            click.echo(note, err=True)
    say(explain_json(found) if as_json else explain_text(found))


def _survey(resolved: "Resolved", *, as_json: bool) -> None:
    """What the cache holds, and what running servers say of it."""
    from omlx.cli.found import live_servers
    from omlx.cli.view import cache as view
    from omlx.storage.fs import RealFileSystem
    from omlx.storage.survey import strays, survey

    fs, directory = RealFileSystem(), resolved.cache_dir
    roots = _reading(directory, lambda: survey(directory, fs))
    others = _reading(directory, lambda: strays(directory, fs))
    servers, problems = live_servers(resolved, directory)
    warn(problems)
    report = view.make_report(directory, roots, others, servers, now=time.time())
    if as_json:
        say(view.inspect_json(report))
        return
    say(view.inspect_text(report))
    if not servers:
        note = "note: no server is running: only one knows hits and its memory tier"
        click.echo(note, err=True)


@click.command(cls=SettingsCommand)
@click.option("--max-size", metavar="SIZE", help="Drop the oldest until no more than this is left.")
@click.option("--older-than", metavar="DURATION", help="Drop what was not used for so long.")
@click.option("--model", metavar="ID", help="Drop only blocks of this model; alone, all of them.")
@click.option("--all", "everything", is_flag=True, help="Drop everything.")
@click.option("--dry-run", is_flag=True, help="Only print what would be dropped.")
@json_option
@settings_options("cache.dir")
@click.pass_context
def prune(
    ctx: click.Context,
    *,
    max_size: str | None,
    older_than: str | None,
    model: str | None,
    everything: bool,
    dry_run: bool,
    as_json: bool,
    **given: object,
) -> None:
    """Drop blocks from the disk tier.

    At least one of --max-size, --older-than, --model and --all is needed. The oldest go first. It
    is safe beside a running server, and never touches files that omlx did not make.
    """
    from omlx.cli.view import cache as view
    from omlx.storage.fs import RealFileSystem
    from omlx.storage.survey import execute, plan_prune

    _check_criteria(max_size, older_than, model, everything=everything)
    max_bytes = _number("--max-size", max_size, parse_size)
    older_than_s = _number("--older-than", older_than, parse_duration)
    resolved = resolve(ctx, given)
    fs, directory = RealFileSystem(), resolved.cache_dir
    names = _model_names(directory)
    if model is not None and model not in names.values():
        raise _unknown_model(directory, model, sorted({name for name in names.values() if name}))
    plan = _reading(
        directory,
        lambda: plan_prune(
            directory,
            fs,
            now=time.time(),
            max_bytes=max_bytes,
            older_than_s=older_than_s,
            model=model,
            everything=everything,
        ),
    )
    outcome = None if dry_run else execute(plan, directory, fs)
    text = view.prune_json if as_json else view.prune_text
    say(text(plan, outcome, names))
    if outcome is not None and outcome.num_failed:
        raise StoreError(f"{outcome.num_failed} files in {directory} could not be removed")


def _check_criteria(
    max_size: str | None, older_than: str | None, model: str | None, *, everything: bool
) -> None:
    if everything and (max_size is not None or older_than is not None):
        raise UsageError("--all leaves nothing for --max-size or --older-than to choose")
    if not everything and max_size is None and older_than is None and model is None:
        raise UsageError(
            "nothing says what to drop",
            hint="give --max-size, --older-than, --model or --all; --dry-run only prints",
        )


def _number(flag: str, text: str | None, parse: Callable[[str], Number]) -> Number | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _model_names(directory: Path) -> dict[str, str | None]:
    """The models of the roots in the cache."""
    from omlx.storage.fs import RealFileSystem
    from omlx.storage.survey import survey

    roots = _reading(directory, lambda: survey(directory, RealFileSystem()))
    return {root.root16: root.model for root in roots}


def _unknown_model(directory: Path, model: str, known: list[str]) -> UsageError:
    from omlx.settings.layers import suggest

    hint = f"it has blocks of {', '.join(known)}" if known else "it has no blocks"
    return UsageError(f"no blocks of {model!r} in {directory}{suggest(model, known)}", hint=hint)


def _reading(directory: Path, read: Callable[[], Answer]) -> Answer:
    try:
        return read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"the cache folder {directory} cannot be read: {reason}") from None
