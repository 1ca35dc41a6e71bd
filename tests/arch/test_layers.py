"""The layers: a module imports its own package and lower rows only, and each library has owners."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "omlx"
ROWS = {
    "cli": 6,
    "server": 5, "bench": 5, "launch": 5,
    "engine": 4,
    "cache": 3, "models": 3,
    "storage": 2, "custom_kernels": 2,
    "settings": 1, "client": 1,
    "errors": 0, "units": 0, "stats": 0, "log": 0,
}  # fmt: skip
OWNERS = {
    "click": ("omlx.cli",),
    "rich": ("omlx.cli",),
    "tomli_w": ("omlx.cli",),
    "tomlkit": ("omlx.cli",),
    "sanic": ("omlx.server",),
    "uvloop": ("omlx.server",),
    "msgspec": ("omlx.server", "omlx.models"),
    "tokenizers": ("omlx.models",),
    "jinja2": ("omlx.models",),
    "transformers": ("omlx.models",),
    "orjson": ("omlx.server", "omlx.engine.frames"),
    "numpy": ("omlx.cache", "omlx.models", "omlx.engine.constrain", "omlx.engine.shaping"),
    "llguidance": ("omlx.engine.constrain",),
    "prometheus_client": ("omlx.server",),
    "xxhash": ("omlx.storage",),
    "gguf": ("omlx.models.gguf_arrays",),
    "lm_eval": ("omlx.models.questions",),
    "datasets": ("omlx.models.questions",),
    "huggingface_hub": ("omlx.models.hub",),
    "psutil": ("omlx.engine", "omlx.models", "omlx.server", "omlx.launch", "omlx.bench",
               "omlx.cli"),
    "yaml": ("omlx.launch",),
    "mlx": ("omlx.custom_kernels", "omlx.models.load", "omlx.models.arch",
            "omlx.models.agreement", "omlx.models.measure", "omlx.models.questions",
            "omlx.models.quantize", "omlx.models.tinykinds", "omlx.models.fused",
            "omlx.models.kernels", "omlx.cache.codec",
            "omlx.cache.landing",
            "omlx.engine.batch", "omlx.engine.prefill", "omlx.engine.sampling",
            "omlx.engine.memory", "omlx.engine.engine", "omlx.engine.solo",
            "omlx.engine.readrate",
            "omlx.engine.shaping"),
    "mlx_lm": ("omlx.models.load", "omlx.models.arch", "omlx.models.agreement",
               "omlx.models.questions", "omlx.models.quantize", "omlx.models.fused",
               "omlx.cache.codec", "omlx.engine.batch",
               "omlx.engine.prefill", "omlx.engine.sampling"),
}  # fmt: skip
STDLIB_ONLY_PACKAGES = ("settings", "client", "errors", "units", "stats", "log")

MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every absolute module name imported anywhere in the file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.lineno, node.module


def part(module: str) -> str | None:
    """The package of a module; the entry module belongs to the command line."""
    pieces = module.split(".")
    if len(pieces) == 1:
        return None
    return "cli" if pieces[1] == "__main__" else pieces[1]


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_imports_only_its_own_package_and_lower_rows(path: Path) -> None:
    own = part(module_name(path))
    for line, module in imports(path):
        if module.split(".")[0] != "omlx" or own is None:
            continue
        other = part(module)
        if other is None or other == own:  # the root package knows its version only
            continue
        assert other in ROWS, f"{path}:{line}: {module} has no row"
        where = f"{path}:{line}: {own} (row {ROWS[own]}) imports {module} (row {ROWS[other]})"
        assert ROWS[other] < ROWS[own], where


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_library_is_imported_by_its_owners_only(path: Path) -> None:
    name = module_name(path)
    for line, module in imports(path):
        library = module.split(".")[0]
        if library not in OWNERS:
            continue
        allowed = any(name == owner or name.startswith(owner + ".") for owner in OWNERS[library])
        assert allowed, f"{path}:{line}: {name} imports {library}"


def test_every_package_has_a_row() -> None:
    packages = {p.name for p in PACKAGE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert packages <= set(ROWS)
