"""`omlx bench verify`: the four checks of a prefix cache that a user should run.

Knows nothing about how they are made.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.benching.options import (
    check_html,
    ending_servers,
    local_model,
    model_options,
    remote_target,
    reporting,
    result_options,
    server_options,
    show,
)
from omlx.cli.options import SettingsCommand, resolve
from omlx.errors import OmlxError, UsageError

if TYPE_CHECKING:
    from omlx.bench.client import Target
    from omlx.bench.result import Check, Report
    from omlx.bench.verify import Explain, Lost, Wanted
    from omlx.models.locate import ModelEntry
    from omlx.settings.build import Resolved

_HERE = ("127.0.0.1", "localhost", "::1")
_EXPLAIN_S = 10.0
_COMMAND_S = 300.0
_READY_S = 600.0
_POLL_S = 0.1


@click.command(cls=SettingsCommand)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(600, 1_000_000),
    default=600,
    show_default=True,
    help="Tokens of a prompt, roughly; more than two blocks.",
)
@click.option(
    "--at-once",
    metavar="N",
    type=click.IntRange(2, 64),
    default=4,
    show_default=True,
    help="So many requests at the same time.",
)
@click.option(
    "--restart-command",
    metavar="COMMAND",
    help="With --url: what restarts that server; a shell runs it.",
)
@server_options
@model_options
@result_options
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    tokens: int,
    at_once: int,
    restart_command: str | None,
    url: str | None,
    key: str | None,
    model: str | None,
    demo: bool,
    seed: int,
    as_json: bool,
    html: str | None,
    **given: object,
) -> None:
    """Check that the prefix cache hits when it should, and fail if it doesn't.

    Four checks: the same request twice, after a restart, with its tools in another order, and
    several at once that begin alike. Each passes or fails with the reason and the figures. With
    stable prompts (prompt.tool_order) other orders of tools hit; without, the first block that is
    lost has to be named.

    Servers are started for it and ended again, on a store of their own, with the demo model
    (--demo) or another (--model). With --url it is that server, and what would need its restart is
    not checked unless --restart-command says how.
    """
    from omlx.bench.result import has_failed
    from omlx.bench.verify import Wanted

    if restart_command is not None and url is None:
        raise UsageError("--restart-command needs --url: other servers are restarted anyway")
    if url is not None and demo:
        raise UsageError("--url and --demo exclude each other")
    page = check_html(html)
    wanted = Wanted(seed=str(seed), num_tokens=tokens, at_once=at_once)
    with ending_servers():
        if url is not None:
            target = remote_target(ctx, given, url, model, key)
            explain = _explainer_of(resolve(ctx, given), target)
            checks = _check_url(target, wanted, restart_command, explain)
            name, facts = target.model, {"url": url}
        else:
            entry = local_model(ctx, given, model, demo=demo)
            checks, name, facts = *_check_own(entry, wanted, demo=demo), {"settings": _settings()}
    options = {"tokens": tokens, "at_once": at_once, "demo": demo}
    show(_report(checks, name, seed, options, facts), as_json=as_json, html=page)
    if has_failed(checks):
        failed = ", ".join(check.name for check in checks if check.is_passed is False)
        raise OmlxError(f"the prefix cache does not do what it should: {failed}")


def _settings() -> dict[str, object]:
    from omlx.bench.ownverify import SETTINGS

    return dict(SETTINGS)


def _report(
    checks: "list[Check]",
    model: str,
    seed: int,
    options: Mapping[str, object],
    facts: Mapping[str, object],
) -> "Report":
    from omlx.bench.machine import describe
    from omlx.bench.result import Report

    return Report(
        kind="verify",
        seed=seed,
        model=model,
        machine=describe(),
        options=options,
        sides={"server": facts},
        checks=tuple(checks),
    )


def _check_own(entry: "ModelEntry", wanted: "Wanted", *, demo: bool) -> "tuple[list[Check], str]":
    """The checks on servers of this bench's own, and the model's name there."""
    from omlx.bench.ownverify import NUM_STEPS, SETTINGS, verify_own
    from omlx.bench.servers import Serve, Server
    from omlx.bench.step import Steps
    from omlx.bench.tooled import with_tool_template

    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder:
        path = with_tool_template(entry.path, Path(folder) / "models") if demo else entry.path
        serve = Serve((path,), SETTINGS)
        with reporting("verify") as on_step:
            steps = Steps(NUM_STEPS, on_step)
            with Server(serve, home=Path(folder) / "home") as server:
                explain = _explainer(_resolved_of(server.home, path))
                return verify_own(server, entry.id, wanted, steps, explain), entry.id


def _resolved_of(home: Path, model: Path) -> "Resolved":
    """The settings by which the journal and the store of a server are read."""
    from omlx.settings.build import load

    return load(cli={"models.dir": [str(model)]}, env={"OMLX_HOME": str(home)}, cwd=home)


def _check_url(
    target: "Target", wanted: "Wanted", restart_command: str | None, explain: "Explain"
) -> "list[Check]":
    from omlx.bench.step import Steps
    from omlx.bench.verify import NAMES, Verifier

    restart = None if restart_command is None else _restarter(target, restart_command)
    with reporting("verify") as on_step:
        steps = Steps(len(NAMES), on_step)
        checks = Verifier(target, wanted, steps, restart=restart, explain=explain).all()
        steps.end()
        return checks


def _restarter(target: "Target", command: str) -> "Callable[[], Target]":
    """What runs the user's command and waits until the server answers again; BenchError."""
    from omlx.bench.failure import BenchError
    from omlx.bench.insight import Insight

    def restart() -> "Target":
        try:
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=_COMMAND_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"--restart-command did not end within {_COMMAND_S:.0f} s",
                hint="it has to leave the server in the background",
            ) from None
        if done.returncode:
            said = " ".join(done.stderr.split())[-200:]
            raise BenchError(f"--restart-command ended with {done.returncode}: {said or 'no word'}")
        deadline = time.monotonic() + _READY_S
        while not Insight(target).is_ready():
            if time.monotonic() > deadline:
                raise BenchError(f"{target.url} does not answer after its restart")
            time.sleep(_POLL_S)
        return target

    return restart


def _explainer_of(resolved: "Resolved", target: "Target") -> "Explain":
    """What explains misses of a server of this user's, by its journal; of others nothing can."""
    from omlx.bench.address import connection_to
    from omlx.bench.verify import unexplained
    from omlx.client import running_servers

    connection, _ = connection_to(target.url)
    is_here = connection.host in _HERE
    running = running_servers(resolved.state_dir) if is_here else []
    if any(server.port == connection.port for server in running):
        return _explainer(resolved)
    return unexplained


def _explainer(resolved: "Resolved") -> "Explain":
    """Explains a request by the journal; waits until its row and its blocks are there."""

    def explain(request_id: str) -> "Lost | None":
        deadline = time.monotonic() + _EXPLAIN_S
        while True:
            found, is_whole = _explained(request_id, resolved)
            if is_whole or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)

    return explain


def _explained(request_id: str, resolved: "Resolved") -> "tuple[Lost | None, bool]":
    """What is known now, and whether that is all there is to know."""
    from omlx.bench.verify import Lost
    from omlx.cli.explain import explain_request

    try:
        said = explain_request(request_id, resolved)
    except OmlxError:
        return None, False
    if said.divergence is not None:
        found = said.divergence
        return Lost(found.token_idx, found.place, found.change.value), True
    if said.left_at is None:
        return None, True
    return Lost(said.left_at, said.place), False
