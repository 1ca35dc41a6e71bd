"""The omlx command: its groups, and how errors become messages and exit codes.

Knows nothing about what the commands do; nothing but click is imported until one runs.
"""

import sys
from collections.abc import Sequence

import click

from omlx import __version__
from omlx.cli.lazy import LazyCommand, LazyGroup
from omlx.cli.options import CONTEXT_SETTINGS, Globals, give_up_stdout, profile_option
from omlx.errors import OmlxError, SettingsError

INTERRUPTED = 130

COMMANDS = {
    "serve": LazyCommand("omlx.cli.serve:serve", "Serve models over HTTP."),
    "start": LazyCommand("omlx.cli.start:start", "Start a server in the background."),
    "stop": LazyCommand("omlx.cli.stop:stop", "Stop a server, in the background or not."),
    "restart": LazyCommand("omlx.cli.restart:restart", "Restart a server, in the background."),
    "status": LazyCommand("omlx.cli.status:status", "Show the servers that run."),
    "top": LazyCommand(
        "omlx.cli.top:top", "Watch a running server: requests, tiers, hits and engines."
    ),
    "logs": LazyCommand("omlx.cli.logs:logs", "Print the log of a server."),
    "service": LazyCommand(
        "omlx.cli.groups:service", "Have a server started at login, and again when it crashes."
    ),
    "doctor": LazyCommand(
        "omlx.cli.doctor:doctor", "Find out what is wrong, and how to put it right."
    ),
    "usage": LazyCommand(
        "omlx.cli.usage:usage", "Show what was served, by model, client and API key."
    ),
    "launch": LazyCommand("omlx.cli.launch:launch", "Start a coding agent on a local model."),
    "model": LazyCommand(
        "omlx.cli.groups:model", "List models, get new ones, load and unload them."
    ),
    "cache": LazyCommand("omlx.cli.groups:cache", "Look into the prefix cache and prune it."),
    "quantize": LazyCommand(
        "omlx.cli.quantize:quantize", "Make a smaller model, in formats chosen by measurement."
    ),
    "kernel": LazyCommand(
        "omlx.cli.groups:kernel", "Build the kernels of omlx for this GPU, and show how they stand."
    ),
    "bench": LazyCommand("omlx.cli.bench:bench", "Measure models, servers and the prefix cache."),
    "key": LazyCommand("omlx.cli.groups:key", "Make, list and revoke API keys."),
    "config": LazyCommand(
        "omlx.cli.groups:config", "Show the settings and where they come from, and write them."
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings=CONTEXT_SETTINGS)
@click.version_option(__version__, prog_name="omlx", message="%(prog)s %(version)s")
@profile_option
@click.pass_context
def omlx(ctx: click.Context, profile: str | None) -> None:
    """Serve local language models, and never pay twice for a prefix.

    Start with `omlx serve --demo`, which gets a small model and serves it. Every setting is a
    flag of `omlx serve`, a variable OMLX_*, and a key of config.toml in OMLX_HOME (~/.omlx).
    """
    ctx.obj = Globals(profile)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; faults of the user get no traceback."""
    try:
        result = omlx.main(args, prog_name="omlx", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except OmlxError as error:
        _say_error(error.problems if isinstance(error, SettingsError) else [error.message])
        _say_hint(error.hint)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        _say_error([error.format_message()])
        _say_hint(_usage_hint(error))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        give_up_stdout()  # whoever read it is gone
        return 1


def _say_error(problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"error: {problem}", err=True)


def _say_hint(hint: str) -> None:
    if hint:
        click.echo(f"hint: {hint}", err=True)


def _usage_hint(error: click.ClickException) -> str:
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return ""
    return f"{error.ctx.command_path} --help lists what it takes"


if __name__ == "__main__":
    sys.exit(run())
