"""What measuring commands share: the model, samples as they come, the report they become.

Knows nothing about what is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from omlx.bench.machine import describe
from omlx.bench.result import Case, Check, Label, Measure, Ratio, Report, Value
from omlx.bench.servers import Serve, arguments
from omlx.bench.workload import Words
from omlx.models.config import mapping, positive_int, read_json
from omlx.models.text import TextModel


@dataclass(frozen=True, slots=True)
class Model:
    """A model of this machine: its folder, its id, and its window in tokens, None if unknown."""

    id: str
    folder: Path
    window: int | None

    @property
    def num_vocab(self) -> int:
        """How many token ids its configuration tells of; at least 256 if it does not."""
        config = read_json(self.folder / "config.json")
        text = {**config, **mapping(config.get("text_config"))}
        return positive_int(text.get("vocab_size")) or 256

    def words(self) -> Words:
        """Texts counted by its own tokenizer; ModelError."""
        text = TextModel.load(self.folder)
        return Words(lambda piece: len(text.encode(piece)))


Key = tuple[str, str, Label, str, tuple[tuple[str, Value], ...]]


class Samples:
    """Collects samples by figure, label, side and case, in the order in which they came first."""

    def __init__(self) -> None:
        self._found: dict[Key, list[float]] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """What was noted, each thing once."""
        return [*self._notes]

    def note(self, text: str) -> None:
        """Say something about the figures (mutates)."""
        self._notes[text] = None

    def add(
        self,
        name: str,
        unit: str,
        value: float,
        label: Label,
        case: Case,
        *,
        side: str = "",
    ) -> None:
        """One more sample (mutates)."""
        key = (name, unit, label, side, tuple(case.items()))
        self._found.setdefault(key, []).append(float(value))

    def measures(self) -> tuple[Measure, ...]:
        """All of them, those of one name together."""
        found = [
            Measure(name, unit, tuple(values), label, side, dict(case))
            for (name, unit, label, side, case), values in self._found.items()
        ]
        names = [*dict.fromkeys(measure.name for measure in found)]
        return tuple(sorted(found, key=lambda measure: names.index(measure.name)))


def report_of(
    kind: str,
    model: str,
    options: Any,
    samples: Samples,
    *,
    sides: Mapping[str, Mapping[str, object]] | None = None,
    ratios: Sequence[Ratio] = (),
    checks: Sequence[Check] = (),
    notes: Sequence[str] = (),
) -> Report:
    """The report of a run; `options` is a dataclass of what was asked for, with a seed."""
    asked = {name: _plain(value) for name, value in asdict(options).items()}
    return Report(
        kind=kind,
        seed=options.seed,
        model=model,
        machine=describe(),
        options=asked,
        sides=sides or {},
        measures=samples.measures(),
        ratios=tuple(ratios),
        checks=tuple(checks),
        notes=tuple(notes),
    )


def _plain(value: object) -> object:
    return list(cast(tuple[object, ...], value)) if isinstance(value, tuple) else value


def server_facts(serve: Serve) -> dict[str, object]:
    """What is to be known of a server that the bench starts: how, without places of this user."""
    names = {str(folder): folder.name for folder in serve.models}
    words = arguments(serve)
    for path, name in names.items():
        words = [word.replace(path, name) for word in words]
    return {"command": " ".join(["omlx serve", *words])}
