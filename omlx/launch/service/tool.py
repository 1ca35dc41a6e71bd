"""Calls the programs of a system that supervise services, and returns what they say.

Knows nothing about what they do.
"""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended and what it said; 127 where there is none, 124 where it took too long."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def said(self) -> str:
        """Its last words, on one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


Tool = Callable[[Sequence[str], float], Done]


def run_tool(words: Sequence[str], timeout_s: float) -> Done:
    """Run a program and wait for its end."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Done(124, err=f"{words[0]} did not end within {timeout_s:.0f} s")
    except OSError as error:
        return Done(127, err=f"{words[0]}: {error.strerror or error}")
    return Done(done.returncode, done.stdout, done.stderr)
