"""What the admin page of a server is told by the command line: verdicts, recipes, settings, misses.

Knows nothing about HTTP. Every method may be called from any thread.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.errors import OmlxError, UsageError

if TYPE_CHECKING:
    from omlx.cache.explain import Divergence
    from omlx.launch.catalog import Client
    from omlx.launch.plan import Recipe, Setup
    from omlx.server.desk import Wanted
    from omlx.settings.build import Resolved
    from omlx.storage.entry import Span

_PLACEHOLDER = "YOUR_API_KEY"
_FOLDER = "omlx-launch"  # below the user's home, where a recipe by hand puts its files


class CliDesk:
    """Of one server: `resolved` are its settings, `given` its flags by the path of a setting."""

    def __init__(self, resolved: "Resolved", given: Mapping[str, object], catalog: Path) -> None:
        self._resolved = resolved
        self._given = given
        self._catalog = catalog

    def lead(self, status: Mapping[str, object]) -> dict[str, object]:
        """The three figures that lead, with their verdicts."""
        from omlx.cli.view.lead import lead_json
        from omlx.cli.view.status import read_status

        return lead_json(read_status(status))

    def miss(self, request_id: str) -> dict[str, object]:
        """Why a request missed, without any text: omlx cache inspect --request has that."""
        from omlx.cli.explain import explain_request

        found = explain_request(request_id, self._resolved)
        entry, divergence = found.entry, found.divergence
        assert entry is not None
        at = found.left_at if divergence is None else divergence.token_idx
        return {
            "id": entry.request_id,
            "model": found.model,
            "miss": entry.miss.value,
            "prompt_tokens": entry.prompt_tokens,
            "cached_memory": entry.cached_memory,
            "cached_disk": entry.cached_disk,
            "uncached": entry.uncached,
            "token": at,
            "place": _place(entry.spans, at, divergence),
            "change": None if divergence is None else divergence.change.value,
            "note": found.note,
            "parts": [
                {
                    "part": row.section.value,
                    "tokens": row.num_tokens,
                    "cached": row.num_cached,
                    "uncached": row.num_uncached,
                }
                for row in found.sections
            ],
        }

    def clients(self, window: int | None) -> Sequence[Mapping[str, object]]:
        """The clients that come with omlx."""
        from omlx.launch.catalog import read_catalog
        from omlx.launch.fits import fit, need

        return [
            {
                "name": one.name,
                "title": one.title,
                "kind": one.kind.value,
                "endpoint": one.endpoint.value,
                "install": one.install,
                "needed_tokens": need(one),
                "fit": None if window is None else fit(one, window).value,
            }
            for one in read_catalog(self._catalog).values()
        ]

    def recipe(self, wanted: "Wanted") -> dict[str, object]:
        """How a client is set up by hand, with a placeholder for the key."""
        from omlx.launch.catalog import find_client, read_catalog
        from omlx.launch.plan import Setup
        from omlx.launch.recipes import RECIPES

        client = find_client(read_catalog(self._catalog), wanted.client)
        if not wanted.base:
            raise OmlxError("agents can't use a Unix socket", hint="serve on a host and port")
        home = Path(os.environ.get("HOME") or Path.home())
        is_https = wanted.base.startswith("https:")
        setup = Setup(
            wanted.base,
            wanted.model,
            wanted.model,
            wanted.window,
            folder=home / ".cache" / _FOLDER / client.name,
            home=home,
            key=_PLACEHOLDER if wanted.needs_key else None,
            certificate=self._resolved.settings.server.tls_cert if is_https else None,
        )
        lines = _lines(client, setup, RECIPES[client.name])
        return {
            "name": client.name,
            "model": wanted.model,
            "command": shlex.join(["omlx", "launch", client.name, "--model", wanted.model]),
            "text": lines,
            "has_placeholder": _PLACEHOLDER in lines,
        }

    def written(self) -> "Resolved":
        """The settings as a server that is started now in the same way would have them."""
        from omlx.settings.build import load

        now = self._resolved
        return load(
            cli=self._given, env=os.environ, cwd=now.cwd, profile=now.profile, machine=now.machine
        )

    def write(self, path: str, text: str | None) -> None:
        """Set one setting in config.toml of the user, or take it out; SettingsError."""
        from omlx.cli.assignments import converted, leaf_of
        from omlx.cli.configuring import apply

        leaf = leaf_of(path)
        if leaf.option.secret:
            raise UsageError(f"{path} is a secret")
        target = self._resolved.home / "config.toml"
        values = {} if text is None else converted([(leaf, text)], self._resolved.cwd)
        apply(target, {tuple(path.split(".")): values.get(leaf)})


def _place(
    spans: "Sequence[Span]", token_idx: int | None, divergence: "Divergence | None"
) -> str | None:
    """The part in which the first token that was not stored lies; a tool without its name."""
    if token_idx is None:
        return None
    part = None if divergence is None else divergence.part
    if divergence is None:
        part = next((s.part for s in spans if s.start <= token_idx < s.end), None)
    if part is None:
        return "template"
    return f"{part.kind.value} {part.idx}"


def _lines(client: "Client", setup: "Setup", recipe: "Recipe") -> str:
    """What it takes, as text to copy."""
    from omlx.launch.plan import with_certificate
    from omlx.launch.shell import shell_lines

    parts: list[str] = []
    if recipe.says is not None:
        parts.append(recipe.says(setup))
    if recipe.plan is not None:
        plan = replace(with_certificate(recipe.plan(setup), setup), mirrors=())
        parts.append(shell_lines(client.executables[0], plan, setup.folder))
    return "\n".join(parts)
