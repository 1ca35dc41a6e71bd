"""A user's home with files of clients in many shapes, and what is in it byte for byte."""

import os
from dataclasses import dataclass
from pathlib import Path

from omlx.launch.plan import Setup
from omlx.launch.recipes import RECIPES

WRITTEN = sorted(name for name, recipe in RECIPES.items() if recipe.edits is not None)

_JSON = (
    '{\n  // which model, and why\n  "theme": "dark",\n'
    '  "model": "other/one", // the usual one\n'
    '  "providers": { "mine": { "baseUrl": "https://a.example/v1" } },\n'
    '  "env": {\n    "EDITOR": "vi" /* of course */\n  },\n'
    '  "unknown": [1, 2, {"deep": null}],\n}\n'
)
_TOML = (
    '# my configuration\nmodel = "other" # the usual one\napproval_policy = "never"\n'
    'notify = [\n  "say", # aloud\n  "[done]",\n]\n\n[tools]\nweb = true # fine\n\n'
    '[[mcp_servers]]\nname = "a"\n\n[unknown."x.y"]\ntext = """\n[not a table]\n"""\n'
)
_YAML = (
    "# my configuration\nmodel: # the usual one\n  default: other\n  temperature: 0.2 # cool\n\n"
    "# the rest\nterminal:\n  backend: local\nunknown: [1, 2]\n"
)
_CONTINUE = (
    "name: mine\nversion: 1.0.0\nschema: v1\nmodels:\n  # the usual one\n  - name: other\n"
    "    provider: ollama\n    model: a\n  - name: another # too\n    provider: openai\n"
    "    model: b\n# the rest\ncontext:\n  - provider: code\n"
)


def own_text(path: Path) -> str:
    """A file as people have it, with comments and keys that nobody here knows."""
    if path.suffix == ".toml":
        return _TOML
    if path.name == ".aider.conf.yml":
        return "# mine\nmodel: gpt # the usual one\ndark-mode: true\nread: [a.md]\n"
    if path.parent.name == ".continue":
        return _CONTINUE
    if path.parent.name == ".qwen":
        return _JSON.replace('"other/one"', '{ "name": "other/one" }')
    return _YAML if path.suffix in (".yaml", ".yml") else _JSON


def files_of(name: str, home: Path) -> list[Path]:
    """The files that --write changes for a client."""
    setup = Setup("http://127.0.0.1:8000", "m", "m", 131072, home / "run", home)
    edits = RECIPES[name].edits
    assert edits is not None
    return [edit.path for edit in edits(setup)]


@dataclass(frozen=True)
class Entry:
    """One name in a folder: what it is, what it holds, and its mode."""

    kind: str
    content: bytes
    mode: int


def snapshot(root: Path) -> dict[str, Entry]:
    """Everything below a folder."""
    found: dict[str, Entry] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            place = str(path.relative_to(root))
            if path.is_symlink():
                found[place] = Entry("link", os.fsencode(path.readlink()), mode)
            elif path.is_dir():
                found[place] = Entry("folder", b"", mode)
            else:
                found[place] = Entry("file", path.read_bytes(), mode)
    return found
