"""A report with some of everything, always the same, for tests of what shows it."""

from omlx.bench.result import Check, Label, Measure, Process, Ratio, Report, Start
from omlx.bench.spread import interval

MACHINE = {
    "omlx": "0.1.0", "commit": "f" * 40, "python": "3.11.2", "system": "Linux x86_64",
    "processor": "Some Processor", "cores": 2, "memory_bytes": 16 * 10**9, "load": 0.5,
    "mlx": "0.32.4", "mlx-lm": "0.32.2",
}  # fmt: skip
COLD = Label(Process.COLD, Start.MISS)
HIT = Label(Process.WARM, Start.DISK)


def make_report(model: str = "tiny-model", note: str = "a note") -> Report:
    """Measures of two sides, one without samples, ratios, checks in three states, notes."""
    case = {"tokens": 2048, "transport": "HTTP"}
    many = tuple(0.01 * n for n in range(1, 41))
    return Report(
        kind="throughput",
        seed=7,
        model=model,
        machine=MACHINE,
        options={"lengths": [512, 2048], "rounds": 3},
        sides={"omlx": {"command": "omlx serve --port=0"}, "peer": {"cache": "in memory"}},
        measures=(
            Measure("prefill", "tokens/s", (1234.5, 1300.0, 1250.25), COLD, "omlx", case),
            Measure("prefill", "tokens/s", (617.0, 650.0, 625.0), COLD, "peer", case),
            Measure("ttft", "s", (1.5, 1.25, 1.75), COLD, "omlx", case),
            Measure("ttft", "s", (0.0123,), HIT, "omlx", {"tokens": 131072, "transport": "HTTP"}),
            Measure("itl", "s", many, Label(Process.WARM, Start.MISS, 16), "omlx"),
            Measure("memory", "bytes", (), COLD, "omlx"),
        ),
        ratios=(
            Ratio("prefill", "omlx", "peer", COLD, interval([2.0, 2.0, 2.1]), case),
            Ratio("ttft", "omlx", "peer", COLD, interval([0.9]), case),
        ),
        checks=(
            Check("same request twice", True, "2,047 of 2,048 tokens cached"),
            Check("tools reordered", False, "lost at block 3", {"block": 3}),
            Check("restart", None, "a server that others run is not restarted"),
        ),
        notes=(note,),
        created="2026-01-02T03:04:05+00:00",
    )
