"""Turns measured costs into a plan: which format each matrix gets under a budget, and why.

Knows nothing about mlx. Roles have floors by measured error, which give way only where the budget
leaves no other choice, and then the plan says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omlx.errors import ModelError
from omlx.models.quantize.allocate import Allocation, Item, Option, allocate, smallest_bytes
from omlx.models.quantize.formats import BY_LABEL, SCALE_BYTES
from omlx.units import format_size

KEPT = "kept"  # the label of a matrix that stays in floats
# The largest share of a role's output that its error may have, squared norms.
_FLOORS = {"router": 1e-3, "embedding": 0.05, "edge": 0.08}
_SHOWN = {"edge": "first and last block", "embedding": "embeddings"}
_ROUTERS = frozenset({"gate", "router", "wg", "shared_expert_gate", "gate_weight"})


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix: its size, and for each format the nats that it costs and its output error."""

    name: str
    num_values: int
    role: str
    costs: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """What the result may take: bits for each of the model's values, or bytes, or nats of KL."""

    bits: float | None = None
    size_bytes: int | None = None
    kl: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The format of each matrix by name, "kept" for those that stay, and what all takes."""

    formats: Mapping[str, str]
    nbytes: int
    bits: float
    predicted_kl: float
    notes: tuple[str, ...]


def role_of(name: str, *, layer: int | None, num_layers: int) -> str:
    """A matrix's role: "router", "embedding" (also the head), "edge" (first and last block), or
    "inner"."""
    if layer is None:
        return "embedding"
    if name.rsplit(".", 1)[-1] in _ROUTERS:
        return "router"
    return "edge" if layer in (0, num_layers - 1) else "inner"


class Planner:
    """Makes plans from what was measured; the same for the same input."""

    def __init__(
        self, matrices: Sequence[Matrix], *, other_bytes: int, num_values: int, dtype: str
    ) -> None:
        """`other_bytes` is what everything takes that is no matrix, `num_values` all values."""
        self._matrices = sorted(matrices, key=lambda one: one.name)
        self._other_bytes = other_bytes
        self._num_values = num_values
        self._dtype = dtype

    def plan(self, goal: Goal) -> Plan:
        """The plan for a goal; ModelError where nothing so small can be made, with what can."""
        if goal.kl is not None:
            return self._for_kl(goal.kl)
        if goal.size_bytes is not None:
            return self.within(goal.size_bytes, f"--size {format_size(goal.size_bytes)}")
        assert goal.bits is not None
        return self.within(int(goal.bits * self._num_values / 8), f"--bits {goal.bits:g}")

    def within(self, nbytes: int, asked: str) -> Plan:
        """The best plan of at most so many bytes."""
        budget = nbytes - self._other_bytes
        notes: tuple[str, ...] = ()
        for relaxed in ((), ("edge",), ("edge", "embedding")):
            items = self._items(relaxed)
            found = allocate(items, budget)
            if found is not None:
                if relaxed:
                    what = " and ".join(_SHOWN[role] for role in relaxed)
                    notes = (f"{asked} leaves no room for the usual floor of {what}",)
                return self._plan(items, found, notes)
        least = smallest_bytes(self._items(("edge", "embedding"))) + self._other_bytes
        raise ModelError(
            f"{asked} is less than this model can take: the smallest formats, with their scales, "
            f"make {self.bits_of(least):.2f} bits a weight, {format_size(least)}",
            hint=f"Ask for --bits {self.bits_of(least) + 0.005:.2f} or more"
            + ("." if self._dtype != "float32" else ", or give --dtype float16."),
        )

    def bits_of(self, nbytes: int) -> float:
        """Bits for each of the model's values."""
        return nbytes * 8 / self._num_values

    def _for_kl(self, kl: float) -> Plan:
        """The smallest plan whose predicted KL is within the limit, to 0.1 % of its size."""
        low = smallest_bytes(self._items(("edge", "embedding"))) + self._other_bytes
        high = self._other_bytes + sum(
            max(option.nbytes for option in item.options) for item in self._items(())
        )
        best = self.within(high, "--quality")
        while high - low > max(high // 1000, 1):
            middle = (low + high) // 2
            found = self.within(middle, "--quality")
            if found.predicted_kl <= kl:
                best, high = found, middle
            else:
                low = middle
        return best

    def _items(self, relaxed: Sequence[str]) -> list[Item]:
        floors = {role: limit for role, limit in _FLOORS.items() if role not in relaxed}
        return [
            Item(one.name, tuple(self._options(one, floors.get(one.role))))
            for one in self._matrices
        ]

    def _options(self, one: Matrix, limit: float | None) -> list[Option]:
        found = [Option(KEPT, one.num_values * SCALE_BYTES[self._dtype], 0.0)]
        for label, (kl, relative) in one.costs.items():
            if limit is None or relative <= limit:
                nbytes = BY_LABEL[label].nbytes(one.num_values, self._dtype)
                found.append(Option(label, nbytes, kl))
        return found

    def _plan(self, items: Sequence[Item], found: Allocation, notes: tuple[str, ...]) -> Plan:
        nbytes = found.nbytes + self._other_bytes
        formats = {
            item.name: item.options[idx].label
            for item, idx in zip(items, found.chosen, strict=True)
        }
        return Plan(formats, nbytes, self.bits_of(nbytes), found.error, notes)
