"""`omlx doctor`: looks at this machine and at what was served, and says what to do.

Knows nothing about what is looked at.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.options import (
    SettingsCommand,
    current_dir,
    json_option,
    resolve,
    say,
    settings_options,
    warn,
)
from omlx.cli.running import user_home
from omlx.errors import OmlxError, SettingsError

if TYPE_CHECKING:
    from omlx.cli.checks.finding import Finding, Look
    from omlx.cli.checks.traffic import Symptom
    from omlx.settings.build import Resolved

_MAX_ROWS = 20_000


@click.command(cls=SettingsCommand)
@click.option(
    "--traffic", is_flag=True, help="Look at the requests of the last days instead of the machine."
)
@click.option(
    "--days",
    type=click.IntRange(1, 365),
    default=7,
    metavar="N",
    help="So many days, with --traffic. [default: 7]",
)
@click.option("--fix", is_flag=True, help="Do what can be done from here, and say so.")
@json_option
@settings_options("models.dir", "cache.dir", "server.port", "server.host")
@click.pass_context
def doctor(
    ctx: click.Context, *, traffic: bool, days: int, fix: bool, as_json: bool, **given: object
) -> int:
    """Find out what is wrong, and how to put it right.

    Looks at Python, mlx and its device, BLAS, kernels, memory, models, open files, the port, the
    disk of the cache (room, speed, place, wear, backups), keys, the service, servers, the journal
    and the agents that are installed, and prints one fix for each problem. Nothing is changed
    without --fix. With --traffic it reads the journal: what made requests slower than they had to
    be, why, and what to do. The exit code is 1 if something is broken, 0 where there are
    warnings only.
    """
    if traffic:
        symptoms = _symptoms(resolve(ctx, given), days)
        say(_traffic_json(symptoms, days) if as_json else _traffic_text(symptoms, days))
        return 0
    findings = _findings(ctx, given)
    fixed = _repair(findings) if fix else []
    say(_json(findings, fixed) if as_json else _text(findings, fixed))
    from omlx.cli.checks.finding import Level

    return 1 if any(one.level is Level.BROKEN for one in findings) else 0


def _findings(ctx: click.Context, given: Mapping[str, object]) -> "list[Finding]":
    """What all checks find; wrong settings are a finding, and defaults hold for the rest."""
    from omlx.cli.checks.all import CHECKS
    from omlx.cli.checks.finding import broken

    found: list[Finding] = []
    try:
        resolved = resolve(ctx, given)
    except SettingsError as error:
        fix = "omlx config edit opens the file; variables are those of this terminal"
        found += [broken("settings", problem, fix) for problem in error.problems]
        resolved = _defaults()
    look = look_at(resolved)
    for check in CHECKS:
        try:
            found += check(look)
        except OmlxError as error:
            topic = check.__name__.removeprefix("check_")
            found.append(broken(topic, error.message, error.hint or "omlx logs may tell more"))
    return found


def _defaults() -> "Resolved":
    from omlx.settings.build import load
    from omlx.settings.machine import this_machine

    kept = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    home = user_home()
    # A folder below that is not there: the file that is wrong is not read again.
    empty = home / "state" / "no-settings"
    resolved = load(env={**kept, "OMLX_HOME": str(empty)}, cwd=empty, machine=this_machine())
    return replace(resolved, home=home, cwd=current_dir())


def look_at(resolved: "Resolved") -> "Look":
    """This machine, with mlx asked."""
    import psutil

    from omlx.cli.checks.finding import Look, Mount
    from omlx.cli.checks.software import ask_mlx, read_probe
    from omlx.engine.blas import preload_library
    from omlx.launch.service.host import this_supervisor

    try:
        library = preload_library(resolved.settings.engine.blas)
    except OmlxError:
        library = None
    parts = psutil.disk_partitions(all=True)
    return Look(
        resolved,
        os.environ,
        supervisor=this_supervisor(),
        mounts=tuple(Mount(p.device, Path(p.mountpoint), p.fstype) for p in parts),
        probe=read_probe(ask_mlx(os.environ, library)),
    )


def _repair(findings: "list[Finding]") -> list[str]:
    """Do what can be done; what was, in words."""
    done: list[str] = []
    for one in findings:
        if one.repair is None:
            continue
        fault = one.repair()
        if fault:
            warn([f"{one.text}: it can't be fixed: {fault}"])
        else:
            done.append(one.text)
    return done


def _text(findings: "list[Finding]", fixed: list[str]) -> str:
    from omlx.cli.checks.finding import Level
    from omlx.cli.view.text import harmless

    lines: list[str] = []
    for one in findings:
        lines.append(f"{one.level.value:8}{one.topic}: {harmless(one.text)}")
        if one.fix and one.text in fixed:
            lines.append("        fixed")
        elif one.fix:
            lines.append(f"        fix: {one.fix}")
    num = {level: sum(one.level is level for one in findings) for level in Level}
    lines.append(f"{num[Level.BROKEN]} broken, {num[Level.WARNING]} to be looked at")
    return "\n".join(lines)


def _json(findings: "list[Finding]", fixed: list[str]) -> str:
    from omlx.cli.checks.finding import Level

    whole = {
        "is_broken": any(one.level is Level.BROKEN for one in findings),
        "findings": [{**one.shown(), "is_fixed": one.text in fixed} for one in findings],
    }
    return json.dumps(whole, indent=2)


# ---- traffic


def _symptoms(resolved: "Resolved", days: int) -> "list[Symptom]":
    from omlx.cli.checks.software import ask_mlx, kernels_of, read_probe
    from omlx.cli.checks.traffic import Traffic, judge
    from omlx.storage.history import History
    from omlx.storage.usage import read_usage

    first = datetime.now(UTC) - timedelta(days=days - 1)
    rows = History(resolved.journal_path).since(time.time() - 86400 * days, _MAX_ROWS)
    usage = read_usage(resolved.journal_path, first.strftime("%Y-%m-%d"))
    models = {row.model for row in rows}
    ttl_s = {model: resolved.for_model(model, None).engine.ttl for model in models}
    return judge(Traffic(rows, usage, ttl_s, kernels_of(read_probe(ask_mlx(os.environ, None)))))


def _traffic_text(symptoms: "list[Symptom]", days: int) -> str:
    from omlx.cli.view.text import harmless

    if not symptoms:
        return f"nothing stands out in the last {days} days"
    lines: list[str] = []
    for one in symptoms:
        lines += [
            f"{one.name}",
            f"  symptom: {harmless(one.seen)}",
            f"  cause: {one.cause}",
            f"  fix: {harmless(one.fix)}",
            f"  more: {one.section}",
        ]
    return "\n".join(lines)


def _traffic_json(symptoms: "list[Symptom]", days: int) -> str:
    return json.dumps({"days": days, "symptoms": [one.shown() for one in symptoms]}, indent=2)
