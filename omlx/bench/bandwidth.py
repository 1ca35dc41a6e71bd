"""The rate at which the device reads memory, measured in a process of its own, and the bound on
decode that follows from it.

Run as `python -m omlx.bench.bandwidth OUT`: writes one JSON object to OUT. Knows nothing about
servers.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from omlx.bench.inproc import child_environment, lines
from omlx.bench.process import Program
from omlx.models.weights import StepWeights


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second read: by products of matrices with a vector, and by sums."""

    matvec: float
    total: float
    device: str

    @property
    def best(self) -> float:
        """The higher one, against which decode is measured."""
        return max(self.matvec, self.total)


def measure_bandwidth() -> Bandwidth:
    """Measure it now, while nothing else should run; BenchError."""
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as name:
        out = Path(name) / "out.jsonl"
        out.touch()
        command = [sys.executable, "-m", "omlx.bench.bandwidth", str(out)]
        program = Program(
            command, name="the measurement of memory", env=child_environment(), cwd=Path(name)
        )
        with program:
            found = next(lines(program, out, 1))
    return Bandwidth(found["matvec"], found["total"], str(found["device"]))


def bound(weights: StepWeights, bandwidth: Bandwidth, *, num_rows: int) -> float:
    """Tokens per second of all rows together, if a step took no longer than reading its weights.

    What a step reads of keys and values, and what it computes, come on top: a real step is slower.
    """
    return num_rows * bandwidth.best / weights.bytes_of(num_rows)


def main(arguments: Sequence[str]) -> int:
    """What the process does; the exit code."""
    from omlx.engine.readrate import measure_read_rate

    Path(arguments[0]).write_text(json.dumps(asdict(measure_read_rate())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
