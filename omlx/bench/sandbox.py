"""Runs a Python program that a model wrote: in a process of its own, with limits.

Knows nothing about models. This keeps mistakes in, not attackers: the program runs as the user,
and can read what the user can.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

_CPU_S = 10
_WALL_S = 20.0
_MEMORY_BYTES = 2**30
_FILE_BYTES = 16 * 2**20
_SHOWN = 400
_OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)

# Runs first in the new process, after a line that sets `facts`. Where the system has namespaces,
# the network goes away; whether it stayed is said before the program's first line, and that the
# program came to its end after its last: an exit on the way is no end.
_PRELUDE = f"""
import ctypes, os, resource, sys
def limit(kind, value):
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        pass
limit(resource.RLIMIT_CPU, {_CPU_S})
limit(resource.RLIMIT_AS, {_MEMORY_BYTES})
limit(resource.RLIMIT_FSIZE, {_FILE_BYTES})
limit(resource.RLIMIT_CORE, 0)
has_network = True
if sys.platform.startswith("linux"):
    CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
    library = ctypes.CDLL(None, use_errno=True)
    has_network = library.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0
limit(resource.RLIMIT_NPROC, 0)
os.write(facts, b"1" if has_network else b"0")
source = sys.stdin.read()
sys.stdin = open(os.devnull)
exec(compile(source, "program", "exec"), {{"__name__": "program"}})
os.write(facts, b"e")
"""


class Outcome(Enum):
    """How a program ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended, the last of what it printed, and whether it had the network."""

    outcome: Outcome
    said: str
    had_network: bool


def run_program(source: str, *, wall_s: float = _WALL_S) -> Ran:
    """Run a program in an empty folder that goes away: 10 s of CPU, 1 GiB, no network.

    Whether the network was kept from it, which not every system allows, is in the result.
    """
    reading, writing = os.pipe()
    with (
        tempfile.TemporaryDirectory(prefix="omlx-code-") as folder,
        tempfile.TemporaryFile() as said,
        os.fdopen(reading, "rb") as facts,
    ):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"facts = {writing}\n{_PRELUDE}"],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "LC_ALL": "C.UTF-8"},
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)
        try:
            process.communicate(source.encode("utf-8", "replace"), timeout=wall_s)
            is_late = process.returncode in _OUT_OF_TIME
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started
            process.wait()
        os.set_blocking(reading, False)  # something that got away may hold the other end
        told = facts.read() or b""
        said.seek(max(0, said.tell() - _SHOWN))
        text = said.read().decode("utf-8", "replace")
    if is_late:
        outcome = Outcome.TIMED_OUT
    else:
        is_passed = process.returncode == 0 and told.endswith(b"e")
        outcome = Outcome.PASSED if is_passed else Outcome.FAILED
    return Ran(outcome, text, not told.startswith(b"0"))
