"""Groups, help, errors and exit codes of the command line."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from omlx.cli import main
from omlx.cli.docs.commands import pages
from omlx.cli.lazy import LazyCommand, LazyGroup
from omlx.errors import OmlxError
from tests.golden import same_as_golden
from tests.unit.cli.conftest import Cli

HEAVY = (
    "mlx", "mlx_lm", "sanic", "numpy", "transformers", "rich", "orjson", "msgspec", "tokenizers",
    "jinja2", "psutil", "prometheus_client", "safetensors", "xxhash", "uvloop", "asyncio",
)  # fmt: skip
PAGES = pages(main.omlx)


def _modules_after(code: str, **env: str) -> tuple[str, set[str]]:
    script = f"import sys\n{code}\nprint('MODULES', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **env},
        cwd=Path(main.__file__).parents[2],
    )
    shown, _, modules = done.stdout.rpartition("MODULES")
    return shown, set(modules.split())


@pytest.mark.parametrize(
    "args",
    [["--help"], ["--version"], ["serve", "--help"], ["cache"], ["bench", "cache", "--help"]],
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    _, modules = _modules_after(f"from omlx.cli.main import run\nrun({args!r})")
    assert "click" in modules
    assert modules.isdisjoint(HEAVY)


def test_help_of_the_root_imports_no_command() -> None:
    _, modules = _modules_after("from omlx.cli.main import run\nrun(['--help'])")
    assert "omlx.cli.serve" not in modules
    assert "omlx.settings.schema" not in modules


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("omlx ser", 1, ["plain,serve", "plain,service"]),
        ("omlx ", 1, [f"plain,{name}" for name in main.COMMANDS]),
        ("omlx cache ", 2, ["plain,inspect", "plain,prune", "plain,verify"]),
        ("omlx serve --log-l", 2, ["plain,--log-level"]),
        ("omlx serve --log-level wa", 3, ["plain,warning"]),
        ("omlx serve --prefill-chunk ", 3, ["plain,auto"]),
        ("omlx serve --cache-dir x", 3, ["dir,x"]),
    ],
)
def test_completion_is_light_and_right(words: str, index: int, expected: list[str]) -> None:
    code = (
        "from omlx.cli.main import run\n"
        "try:\n    run([])\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    env = {
        "_OMLX_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(index),
    }
    shown, modules = _modules_after(code, **env)
    assert shown.split() == expected
    assert modules.isdisjoint(HEAVY)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page.words))
def test_help_texts(cli: Cli, page) -> None:
    outcome = cli(*page.words[1:], "--help")
    assert (outcome.code, outcome.err) == (0, "")
    same_as_golden(f"help/{'-'.join(page.words)}.txt", outcome.out)


def _groups(group: LazyGroup) -> list[LazyGroup]:
    below = [entry.load() for entry in group.lazy.values()]
    return [group, *(one for sub in below if isinstance(sub, LazyGroup) for one in _groups(sub))]


def test_static_short_helps_are_those_of_the_commands() -> None:
    for group in _groups(main.omlx):
        for name, entry in group.lazy.items():
            command = entry.load()
            assert command.name == name
            assert command.get_short_help_str(limit=200) == entry.short_help


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("omlx 0.")


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["serv"], "No such command 'serv'. (Did you mean one of: 'serve', 'service'?)", "omlx"),
        (["quantise"], "No such command 'quantise'. Did you mean 'quantize'?", "omlx --help"),
        (["cache", "prun"], "No such command 'prun'. Did you mean 'prune'?", "omlx cache --help"),
        (["serve", "--prot", "1"], "No such option '--prot'.", "omlx serve --help"),
        (["serve", "--port"], "Option '--port' requires an argument.", ""),
        (["serve", "extra"], "Got unexpected extra argument (extra)", "omlx serve --help"),
        (["serve", "--port", "70000"], "--port: 70000 is not within 0 to 65535", "omlx serve"),
        (["serve", "--profile", "x"], "--profile: unknown profile 'x'", ""),
        (["--profile", "y", "config", "show"], "--profile: unknown profile 'y'", ""),
        (["model", "pull"], "Missing argument 'OWNER/NAME", "omlx model pull --help"),
        (["model", "pull", "x"], "'x' names no model: expected OWNER/NAME", "omlx model pull"),
        (["cache", "prune"], "nothing says what to drop", "--dry-run"),
        (["cache", "prune", "--max-size", "8XB"], "--max-size: '8XB' has an unknown unit", ""),
        (["cache", "prune", "--older-than", "x"], "--older-than: 'x' is not a number", ""),
        (["cache", "prune", "--all", "--max-size", "1GB"], "--all leaves nothing", ""),
    ],
)
def test_wrong_usage_is_one_error_with_a_hint(
    cli: Cli, args: list[str], error: str, hint: str
) -> None:
    outcome = cli(*args)
    assert outcome.code == 2
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert lines[0].startswith(f"error: {error}")
    assert hint in outcome.err.partition("\nhint: ")[2]
    assert "Traceback" not in outcome.err


def test_every_problem_of_the_settings_is_an_error_line(cli: Cli, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[server]\nprot = 1\nport = 'x'\n")
    Path("omlx.toml").write_bytes(b"\xff\x00")
    outcome = cli("config", "show")
    assert outcome.code == 2
    assert outcome.err.splitlines()[:3] == [
        f"error: {home}/config.toml:2: unknown key 'server.prot' (did you mean 'port'?)",
        f"error: {home}/config.toml:3: 'server.port': expected a whole number, got 'x'",
        "error: omlx.toml: not UTF-8 text (byte 0)",
    ]


@pytest.mark.parametrize("args", [[], ["cache"], ["model"], ["config"]])
def test_a_group_alone_prints_its_help_as_an_error(cli: Cli, args: list[str]) -> None:
    outcome = cli(*args)
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: omlx")
    assert "Commands:" in outcome.err


def _raising(error: BaseException) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OmlxError("it broke", hint="mend it"), 1, "error: it broke\nhint: mend it\n"),
        (OmlxError("it broke"), 1, "error: it broke\n"),
        (click.FileError("f", "why"), 1, "error: Could not open file 'f': why\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.Abort(), 130, ""),
    ],
)
def test_errors_of_a_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr(LazyCommand, "load", lambda self: _raising(error))
    outcome = cli("serve")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", said)


def test_a_bug_keeps_its_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LazyCommand, "load", lambda self: _raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli("serve")


def test_a_closed_pipe_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "omlx", "config", "show"]
    root = Path(main.__file__).parents[2]
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False, cwd=root
        )
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_folder_that_is_gone_is_an_error(cli: Cli) -> None:
    gone = Path.cwd()
    gone.rmdir()
    outcome = cli("config", "show")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: the current folder does not exist\nhint: cd to another one\n"


def test_unknown_variables_warn(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_SERVER_PROT", "1")
    outcome = cli("config", "show")
    assert outcome.code == 0
    assert outcome.err == (
        "warning: environment: unknown variable OMLX_SERVER_PROT "
        "(did you mean 'OMLX_SERVER_PORT'?)\n"
    )


def _run_omlx(*args: str, **streams: object) -> subprocess.CompletedProcess[str]:
    root = Path(main.__file__).parents[2]
    command = [sys.executable, "-m", "omlx", *args]
    return subprocess.run(
        command, stderr=subprocess.PIPE, text=True, check=False, cwd=root, **streams
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_no_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = _run_omlx("config", "show", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: stdout cannot be written: No space left on device\n"


def test_a_path_that_is_not_utf_8_is_escaped() -> None:
    env = {
        **os.environb,
        b"OMLX_CACHE_DIR": b"/tmp-\xff",
        b"PYTHONIOENCODING": b"utf-8:strict",
    }
    done = _run_omlx("config", "show", stdout=subprocess.PIPE, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "/tmp-\\udcff" in done.stdout
