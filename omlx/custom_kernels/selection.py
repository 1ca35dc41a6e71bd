"""Which kernel serves a call: the fastest that is verified on this device, if faster than mlx.

Knows nothing of models. For the thread that loads one.
"""

from collections.abc import Sequence

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.op import Case, Function
from omlx.custom_kernels.records import Record, Verdict, find
from omlx.custom_kernels.registry import digest, operations

_NEVER = "not verified on this device"


class Selection:
    """The kernels of a device by their verdicts; remembers what was asked for in vain."""

    def __init__(self, backend: Backend, records: Sequence[Record]) -> None:
        self._backend = backend
        device = backend.device
        self._records: dict[str, Record] = {}
        self._why_not: dict[str, str] = {}
        self._ops = {op.name: op for op in operations()}
        for op in self._ops.values():
            content = digest(op, backend)
            if content is None:
                continue  # no kernel for this device: nothing is missing
            holds_for = (op.name, device.backend, device.name, device.mlx)
            record = find(records, holds_for, content)
            if record is None:
                self._why_not[op.name] = _NEVER
            elif record.verdict is Verdict.FAILED:
                self._why_not[op.name] = f"failed verification: {record.reason}"
            else:
                self._records[op.name] = record
        self._functions: dict[str, Function] = {}
        self._lacking: set[str] = set()

    @property
    def device(self) -> str:
        """The name of the GPU."""
        return self._backend.device.name

    @property
    def lacking(self) -> dict[str, str]:
        """The kernels that were asked for and can't be used, and why."""
        return {name: self._why_not[name] for name in self._why_not if name in self._lacking}

    def speedup(self, name: str, case: Case) -> float:
        """How much faster the kernel is than mlx in this shape class; 0 where it must not be used.

        Remembers (mutates) a kernel that would take the case and is not verified.
        """
        if not self._ops[name].takes(case):
            return 0.0
        if name in self._why_not:
            self._lacking.add(name)
        record = self._records.get(name)
        return 0.0 if record is None else record.speedups.get(case.shape_class, 0.0)

    def fastest(self, names: Sequence[str], case: Case) -> str | None:
        """The fastest of some kernels for a case; None where plain mlx is at least as fast."""
        speeds = {name: self.speedup(name, case) for name in names}
        best = max(speeds, key=lambda name: speeds[name])
        return best if speeds[best] > 1.0 else None

    def function(self, name: str) -> Function:
        """A verified kernel as a function, made once (mutates)."""
        assert name in self._records, name
        if name not in self._functions:
            self._functions[name] = self._ops[name].bind(self._backend)
        return self._functions[name]
