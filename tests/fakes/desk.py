"""A desk whose answers a test chooses, with a real file of settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from omlx.errors import OmlxError, SettingsError
from omlx.server.desk import Wanted
from omlx.settings.build import Resolved, load
from omlx.settings.leaf import leaves
from omlx.settings.sample import toml_literal
from omlx.settings.value import convert


class FakeDesk:
    """What the admin page asks beside the server; `env` are the variables of its settings."""

    def __init__(self, home: Path, env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.env = {"OMLX_HOME": str(home), **(env or {})}
        self.misses: dict[str, dict[str, object]] = {}
        self.wanted: list[Wanted] = []
        self._values: dict[str, str] = {}

    def lead(self, status: Mapping[str, object]) -> dict[str, object]:
        return {"ttft_s": {"verdict": "good", "of": sorted(status)}}

    def miss(self, request_id: str) -> dict[str, object]:
        if request_id not in self.misses:
            raise OmlxError(f"the journal has no request {request_id!r}")
        return self.misses[request_id]

    def clients(self, window: int | None) -> Sequence[Mapping[str, object]]:
        return [{"name": "aider", "title": "Aider", "window": window}]

    def recipe(self, wanted: Wanted) -> dict[str, object]:
        if wanted.client != "aider":
            raise OmlxError("unknown client", hint="there is: aider")
        self.wanted.append(wanted)
        return {"name": wanted.client, "text": f"aider --openai-api-base {wanted.base}/v1"}

    def written(self) -> Resolved:
        return load(env=self.env, cwd=self.home)

    def write(self, path: str, text: str | None) -> None:
        leaf = leaves()[path]
        if text is None:
            self._values.pop(path, None)
        else:
            try:
                value = convert(leaf, text, base=self.home, from_text=True)
            except ValueError as error:
                raise SettingsError([f"{path}: {error}"]) from None
            self._values[path] = toml_literal(leaf, value)
        lines = [f"{name} = {value}" for name, value in self._values.items()]
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")
