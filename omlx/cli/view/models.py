"""Models as a table and as JSON.

Knows nothing about how they were found.
"""

import json
from dataclasses import dataclass

from omlx.cli.view.text import columns
from omlx.models.fits import DEFAULT_CONTEXT, Fit, fit
from omlx.models.locate import Discovery, ModelEntry
from omlx.models.names import Names
from omlx.units import format_size

_HEADER = ("model", "type", "window", "weights", "size")
_FIT_HEADER = ("needs", "fits", "context")
_PLACE_HEADER = ("from", "folder")


@dataclass(frozen=True, slots=True)
class Listing:
    """What is to be shown; `ceiling_bytes` where what fits is asked for."""

    found: Discovery
    names: Names
    ceiling_bytes: int | None = None
    context: int = DEFAULT_CONTEXT

    def fit(self, entry: ModelEntry) -> Fit | None:
        """Whether a model fits, if that was asked for."""
        if self.ceiling_bytes is None:
            return None
        return fit(entry, self.ceiling_bytes, context=self.context)

    def other_names(self) -> list[tuple[str, str]]:
        """Profiles and aliases, each with the id that it stands for."""
        return [
            (name, f"{named.entry.id}" if name == named.id else named.id)
            for name, named in self.names.listed()
            if name != named.entry.id
        ]


def list_text(listing: Listing) -> str:
    """One line a model; folders come last and are never cut. Then one a profile and alias."""
    is_fit = listing.ceiling_bytes is not None
    header = (*_HEADER, *(_FIT_HEADER if is_fit else ()), *_PLACE_HEADER)
    rows = [header, *(_row(entry, listing.fit(entry)) for entry in listing.found.models)]
    rows += [(name, f"= {target}") for name, target in listing.other_names()]
    lines = columns(rows, right=(2, 4, 5, 7) if is_fit else (2, 4))
    if listing.ceiling_bytes is None:
        return lines
    ceiling = format_size(listing.ceiling_bytes)
    return f"{lines}\nmodels and caches may take {ceiling} together; context is of one request"


def _row(entry: ModelEntry, found: Fit | None) -> tuple[str, ...]:
    return (
        entry.id,
        entry.model_type,
        "-" if entry.context_window is None else f"{entry.context_window:,}",
        entry.quantization or entry.dtype or "-",
        format_size(entry.weight_bytes),
        *_fit_cells(found),
        entry.source.value,
        str(entry.path),
    )


def _fit_cells(found: Fit | None) -> tuple[str, ...]:
    if found is None:
        return ()
    return (
        format_size(found.needed_bytes),
        "yes" if found.is_fitting else "no",
        "-" if found.max_context is None else f"{found.max_context:,}",
    )


def list_json(listing: Listing) -> str:
    """The models, their other names, and the folders that were skipped."""
    whole = {
        "models": [_model(entry, listing) for entry in listing.found.models],
        "names": [{"name": name, "model": target} for name, target in listing.other_names()],
        "skipped": [
            {"path": str(problem.path), "reason": problem.reason}
            for problem in listing.found.problems
        ],
    }
    return json.dumps(whole, indent=2)


def _model(entry: ModelEntry, listing: Listing) -> dict[str, object]:
    found = listing.fit(entry)
    shown: dict[str, object] = {
        "id": entry.id,
        "path": str(entry.path),
        "source": entry.source.value,
        "revision": entry.revision,
        "model_type": entry.model_type,
        "context_window": entry.context_window,
        "weight_bytes": entry.weight_bytes,
        "dtype": entry.dtype,
        "quantization": entry.quantization,
        "token_bytes": None if entry.state is None else entry.state.bytes_of(1),
    }
    if found is not None:
        shown["fit"] = {
            "fits": found.is_fitting,
            "context": found.context,
            "needed_bytes": found.needed_bytes,
            "ceiling_bytes": found.ceiling_bytes,
            "max_context": found.max_context,
        }
    return shown
