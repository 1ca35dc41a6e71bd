"""Tiny random models of each kind of layers, made in a process of its own.

Run as `python -m omlx.bench.kinds FOLDER SEED KIND…`. Knows nothing about what they are for.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from omlx.bench.failure import BenchError
from omlx.bench.inproc import child_environment
from omlx.bench.measured import Model
from omlx.bench.process import Program
from omlx.models.config import context_window, read_json

KINDS = ("full", "mla", "window", "state", "hybrid")
_MAKE_S = 300.0


def make_models(kinds: Sequence[str], folder: Path, *, seed: int) -> list[Model]:
    """A model of each kind below a folder, with the kind for its id; BenchError."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise BenchError(
            f"no kind of layers is named {', '.join(unknown)}", hint=f"there are {', '.join(KINDS)}"
        )
    command = [sys.executable, "-m", "omlx.bench.kinds", str(folder), str(seed), *kinds]
    program = Program(command, name="the making of models", env=child_environment(), cwd=folder)
    with program:
        program.wait_until(lambda: not program.is_running, timeout_s=_MAKE_S)
        missing = [kind for kind in kinds if not (folder / kind / "tokenizer.json").is_file()]
        if missing:
            raise BenchError(f"no model of {missing[0]} layers was made\n{program.log_tail()}")
    return [
        Model(kind, folder / kind, context_window(read_json(folder / kind / "config.json")))
        for kind in kinds
    ]


def main(arguments: Sequence[str]) -> int:
    """What the process does; the exit code."""
    from omlx.models.arch.tiny import Kind, write_tiny

    folder, seed, *kinds = arguments
    for kind in kinds:
        write_tiny(Kind(kind), Path(folder) / kind, seed=int(seed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
