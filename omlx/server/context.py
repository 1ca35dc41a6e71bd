"""What a server is made of: the settings, the pool of engines, the texts of models, the clocks.

Knows nothing about HTTP or how any of these is built.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import Engine, Listener
from omlx.models.detokenize import Detokenizer
from omlx.models.locate import ModelEntry
from omlx.models.names import Names
from omlx.models.segments import Splice
from omlx.server.desk import Desk
from omlx.server.forms import SpeechForms
from omlx.server.ledger import Ledger
from omlx.settings.build import ModelSettings
from omlx.settings.layers import Origin
from omlx.settings.schema import Settings
from omlx.storage.journal import Journal
from omlx.storage.toolsets import ToolSets

Message = Mapping[str, object]
Range = tuple[int, int]


class EnginePool(Protocol):
    """The engines of all models that are served; every method may be called from any thread."""

    def models(self) -> Sequence[ModelEntry]:
        """The models that are served, in a stable order."""
        ...

    def get(self, model_id: str) -> Engine:
        """The engine of a model by its exact id; KeyError if there is none."""
        ...

    def health(self, model_id: str) -> EngineHealth:
        """How the engine of a model gets on; KeyError."""
        ...

    def version(self, model_id: str) -> str:
        """Of the model's files that a request's tokens must fit; KeyError."""
        ...

    def load(self, model_id: str) -> None:
        """Begin to load a model if it is not loaded; KeyError."""
        ...

    def unload(self, model_id: str) -> bool:
        """Begin to end the engine of a model; False if it has requests. KeyError."""
        ...

    def pin(self, model_id: str, *, is_pinned: bool) -> None:
        """Let a model stay loaded whoever needs room, or no more; KeyError."""
        ...

    def is_pinned(self, model_id: str) -> bool:
        """Whether a model stays; KeyError."""
        ...

    def add(self, entry: ModelEntry) -> None:
        """Serve one more model, whose id no other has; it is loaded once it is wanted."""
        ...

    def refusal(self, model_id: str) -> str | None:
        """Why a model is not loaded, empty if nobody wanted it; None if it is, or will be soon."""
        ...

    def start_all(self, listener_factory: Callable[[str], Listener]) -> None:
        """Begin to load what is preloaded; the factory gives a model's listener. Returns soon."""
        ...

    def stop_all(self, timeout_s: float) -> None:
        """Flush and end every engine, waiting at most so long for all of them together."""
        ...


class ModelText(Protocol):
    """The text side of one model; any thread may use it."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens of which each ends an answer."""
        ...

    @property
    def context_window(self) -> int | None:
        """How many tokens the model can see; None if its files don't say."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt as text; ModelError carries what the template objects to.

        `extra` are variables that the template may read.
        """
        ...

    @property
    def identity(self) -> str:
        """The same for models whose tokenizers are the same; empty where that is not known."""
        ...

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range] | None]:
        """The token ids of a rendered prompt, and the tokens of ranges of its characters.

        `splices` are for stretches of the text whose tokens are known.
        """
        ...

    def spelt(self, ids: Iterable[int]) -> list[bytes] | None:
        """What each token adds to a text that has begun, special ones too; None: not known."""
        ...

    @property
    def template(self) -> str:
        """The source of the chat template; empty if there is none."""
        ...

    def spell(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        ...

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, in which special tokens are read as such."""
        ...

    def token_id(self, text: str) -> int | None:
        """The token that is exactly this text."""
        ...

    def is_special(self, text: str) -> bool:
        """Whether a text is a special token, which no other text can spell."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token spells, special ones too; empty for an id without a token."""
        ...

    def stream(self, kept: frozenset[str] = frozenset()) -> Detokenizer:
        """A new detokenizer for one answer, in which the special tokens `kept` are text."""
        ...


def _nothing(folder: str) -> str | None:
    """What has come since the start is served by the next server."""
    return None


@dataclass(frozen=True, slots=True)
class Listed:
    """A name as model lists show it; `created` is the start of the server, in epoch seconds.

    `root` is the id of the model itself, for its profiles and other names of it.
    """

    id: str
    window: int | None
    created: int
    root: str = ""
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a stream may be silent, and other limits of patience; all in seconds."""

    # A refusal by the engine within this time still gets a status code of its own.
    head_grace_s: float = 0.1
    # Until the first event that tells something, counted from the submission.
    first_event_s: float = 0.9
    # Between two parts of a body.
    body_s: float = 60.0
    # How long streams that are told to end may take to say so.
    farewell_s: float = 0.3
    drain_poll_s: float = 0.02


@dataclass(frozen=True, slots=True)
class Places:
    """Where the server's things are; `ceiling_bytes` is what models may take, None: not known."""

    cache_dir: Path
    models_dir: Path
    ceiling_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ServerContext:
    """Everything that a server needs; `texts` may take long the first time and must cache.

    `model_settings` takes the id of a model, or model:profile.
    """

    settings: Settings
    pool: EnginePool
    texts: Callable[[ModelEntry], ModelText]
    model_settings: Callable[[str], ModelSettings]
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    timing: Timing = field(default_factory=Timing)
    # Events that wait for one client; one that reads too slowly is given up.
    max_backlog: int = 10_000
    journal: Journal | None = None
    # The file of API keys, which may be missing.
    keys_path: Path | None = None
    # Models that are there and can't be served, with the reason.
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    profiles: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    # Who set each setting, by its path.
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    forms: SpeechForms = field(default_factory=SpeechForms)
    # Orders in which sets of tools first came; for the text thread.
    tool_sets: ToolSets | None = None
    ledger: Ledger | None = None
    # What the admin page needs beside; without them it lacks what depends on them.
    desk: Desk | None = None
    places: Places | None = None
    # Serves a folder that has come since the start, and says under which name; OmlxError.
    adopt: Callable[[str], str | None] = _nothing

    def names(self) -> Names:
        """The names of all models that are served now."""
        aliases = dict(self.settings.models.alias)
        return Names(self.pool.models(), profiles=self.profiles, aliases=aliases)
