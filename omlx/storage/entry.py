"""What is kept of one request that is over: figures, names of blocks, parts of its prompt; no text.

Knows nothing about how it is kept, or about what made the figures.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import cast


class PartKind(Enum):
    """What a part of a prompt is in the body that a client sent."""

    SYSTEM = "system"
    TOOL = "tool"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a prompt; `idx` counts from 0 as in the body, `name` is a tool's or a role."""

    kind: PartKind
    idx: int
    name: str = ""

    def __str__(self) -> str:
        match self.kind:
            case PartKind.SYSTEM:
                return f"system block {self.idx}"
            case PartKind.TOOL:
                return f'tool {self.idx} "{self.name}"'
            case PartKind.MESSAGE:
                return f"message {self.idx} ({self.name})"


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens [start, end) of a prompt that a part of it became; the rest is the template's."""

    part: Part
    start: int
    end: int


class MissReason(Enum):
    """Why prompt tokens had to be computed that a cache might have had."""

    NONE = "none"  # all that was stored was of use; what is left is new
    COLD = "cold"  # nothing like it is stored
    DIVERGED = "diverged"  # a stored sequence goes on otherwise
    EVICTED = "evicted"  # it was computed before, and is not kept any more
    SNAPSHOT = "snapshot"  # it is kept, but the nearest snapshot of recurrent layers lies before
    UNCACHEABLE = "uncacheable"  # the model has layers that can't be kept
    DISABLED = "disabled"  # the cache is off by setting


@dataclass(frozen=True, slots=True)
class TtftParts:
    """What the first token waited for, in seconds; the sum is the time to first token.

    queue: for a place in the batch; load: for the disk; warm_up: for the model to be loaded;
    restore: for cached state to be put in place; prefill; bookkeeping: all the rest, such as
    reading the body, the template, encoding and the way between processes.
    """

    queue_s: float
    load_s: float
    warm_up_s: float
    restore_s: float
    prefill_s: float
    bookkeeping_s: float

    def by_name(self) -> dict[str, float]:
        """The parts in the order of their names here, without the unit."""
        return {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self)}

    @property
    def ttft_s(self) -> float:
        """Their sum."""
        return sum(self.by_name().values())


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One request; `time` is its arrival and `ended` its end, in seconds since 1970.

    `blocks` are the hexadecimal names of the prompt's full blocks, `rest` that of what follows
    them, as far as a cache may serve them. The first `shared` tokens were stored when it came,
    and `nearest` is the block that went on from there otherwise. `computed` counts the prompt
    tokens whose state was there at the end. `snapshot` is the token after which the snapshot was
    taken that a model with recurrent layers went on from, None for another model. `text` is None
    unless the user wants it kept. The first block is named after the root and `salt`. `changes`
    counts by kind what was done to the prompt before the template saw it. `key` is the name of the
    API key. One that is not `is_admitted` never left the queue.
    """

    request_id: str
    time: float
    ended: float
    model: str
    outcome: str
    dialect: str = ""
    client: str = ""
    session: str = ""
    prompt_tokens: int = 0
    cached_memory: int = 0
    cached_disk: int = 0
    generated: int = 0
    parts: TtftParts | None = None
    miss: MissReason = MissReason.NONE
    root: str = ""
    block_size: int = 0
    blocks: tuple[str, ...] = ()
    rest: str | None = None
    shared: int = 0
    computed: int = 0
    nearest: str | None = None
    snapshot: int | None = None
    spans: tuple[Span, ...] = ()
    text: str | None = None
    salt: str = ""
    changes: Mapping[str, int] = field(default_factory=dict[str, int])
    key: str = ""
    is_admitted: bool = True

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the cache."""
        return self.cached_memory + self.cached_disk

    @property
    def uncached(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached

    @property
    def snapshot_cost(self) -> int:
        """Tokens that were stored, but computed again since they lie after the snapshot."""
        if self.snapshot is None:
            return 0
        return max(0, min(self.shared, self.prompt_tokens - 1) - self.snapshot)

    def block_at(self, token_idx: int) -> str | None:
        """The name of the block, or of the rest, that holds a prompt token."""
        if not self.block_size:
            return None
        idx = token_idx // self.block_size
        names = (*self.blocks, *([self.rest] if self.rest is not None else []))
        return names[idx] if idx < len(names) else None

    def computed_blocks(self) -> list[str]:
        """The blocks that this request added to what was stored, the rest included."""
        if not self.block_size:
            return []
        first = self.shared // self.block_size
        names = list(self.blocks[first : self.computed // self.block_size])
        if self.rest is not None and self.computed >= self.prompt_tokens - 1:
            names.append(self.rest)
        return names


def spans_text(spans: Sequence[Span]) -> str:
    """Spans as compact JSON."""
    rows = [(s.part.kind.value, s.part.idx, s.part.name, s.start, s.end) for s in spans]
    return json.dumps(rows, separators=(",", ":"))


def spans_from(text: str) -> tuple[Span, ...]:
    """The spans in a JSON text; none where it holds anything else."""
    try:
        tree: object = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(tree, list):
        return ()
    return tuple(_spans(cast(list[object], tree)))


def changes_text(changes: Mapping[str, int]) -> str:
    """What was done to a prompt as compact JSON; empty for nothing."""
    return json.dumps(dict(changes), separators=(",", ":")) if changes else ""


def changes_from(text: str) -> dict[str, int]:
    """The same back; what the text holds besides is left out."""
    try:
        tree: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(tree, dict):
        return {}
    found = cast(dict[str, object], tree)
    return {kind: num for kind, num in found.items() if isinstance(num, int)}


def _spans(rows: Sequence[object]) -> Iterator[Span]:
    kinds = {kind.value: kind for kind in PartKind}
    for row in rows:
        match row:
            case [str(kind), int(idx), str(name), int(start), int(end)] if kind in kinds:
                yield Span(Part(kinds[kind], idx, name), start, end)
            case _:
                pass
