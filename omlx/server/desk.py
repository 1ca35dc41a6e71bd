"""What the admin page is told that the server itself does not know: it comes from the caller.

Knows nothing about HTTP. The command line has it: verdicts, recipes of clients, files of settings,
and why a request missed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from omlx.settings.build import Resolved


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which recipe is asked for: a client, and the model and server that it shall use.

    `base` is the server's root as the client reaches it; `window` is the model's, in tokens.
    """

    client: str
    model: str
    window: int
    base: str
    needs_key: bool


class Desk(Protocol):
    """Every method may be called from any thread, may take long, and raises OmlxError."""

    def lead(self, status: Mapping[str, object]) -> dict[str, object]:
        """The three figures that lead, with their verdicts, from the status object."""
        ...

    def miss(self, request_id: str) -> dict[str, object]:
        """Why a request of the journal missed, without any text of it."""
        ...

    def clients(self, window: int | None) -> Sequence[Mapping[str, object]]:
        """The clients that are known, and how each goes with a window of so many tokens."""
        ...

    def recipe(self, wanted: Wanted) -> dict[str, object]:
        """How a client is set up by hand, as text that holds no key."""
        ...

    def written(self) -> Resolved:
        """The settings as the files have them now, under the flags and variables of this run."""
        ...

    def write(self, path: str, text: str | None) -> None:
        """Set one setting in the user's file, or take it out; SettingsError says what is wrong."""
        ...
