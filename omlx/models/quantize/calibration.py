"""The text that a quantization measures on, as token ids in sequences of one length.

Knows nothing about models' weights.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.corpus import Source, contexts

SEQUENCE = 256
PARTS = ("agents", "code", "prose", "languages")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Token ids in sequences of one length, mixed: any beginning has something of all parts."""

    sequences: tuple[tuple[int, ...], ...]

    @classmethod
    def load(cls, model: Path, text: Path | None, *, max_tokens: int) -> "Calibration":
        """The text of a file, or the one that comes with omlx: code, prose in several languages,
        tool calls, chat; ModelError where it gives too few tokens."""
        folder = Path(str(files("omlx.models") / "quantize" / "texts"))
        sources = (
            [Source(part, folder / f"{part}.txt") for part in PARTS]
            if text is None
            else [Source("calibration", text)]
        )
        found = contexts(model, sources, max_tokens=2 * max_tokens, context=SEQUENCE)
        longest = max(len(one.tokens) for one in found)
        whole = [one for one in found if len(one.tokens) == longest]
        by_source = [[one.tokens for one in whole if one.source == s.name] for s in sources]
        mixed = [ids for row in zip_longest(*by_source) for ids in row if ids is not None]
        mixed = mixed[: max(1, max_tokens // longest)]
        if not mixed or longest < 2:
            raise ModelError(
                "the calibration text has too few tokens", hint="Give a longer one, or none."
            )
        return cls(tuple(mixed))

    @property
    def num_tokens(self) -> int:
        """How many tokens all sequences have."""
        return sum(len(ids) for ids in self.sequences)

    @property
    def digest(self) -> str:
        """The same for the same tokens."""
        text = ";".join(",".join(map(str, ids)) for ids in self.sequences)
        return hashlib.sha256(text.encode()).hexdigest()
