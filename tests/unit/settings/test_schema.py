"""The schema as a list: names, kinds, defaults within their limits, and the sample file.

Knows nothing about layers.
"""

from pathlib import Path

import pytest

from omlx.settings.build import load
from omlx.settings.leaf import Kind, leaves, with_values
from omlx.settings.sample import sample_toml, toml_literal
from omlx.settings.schema import Settings
from omlx.settings.value import convert, show


def test_flags_and_variables_are_unique() -> None:
    known = list(leaves().values())
    assert len({leaf.flag for leaf in known}) == len(known)
    assert len({leaf.env for leaf in known}) == len(known)


def test_names_follow_from_the_path() -> None:
    port, window = leaves()["server.port"], leaves()["context_window"]
    assert (port.group, port.key, port.flag, port.env) == (
        "server",
        "port",
        "--port",
        "OMLX_SERVER_PORT",
    )
    assert (window.group, window.flag, window.env) == (
        "",
        "--context-window",
        "OMLX_CONTEXT_WINDOW",
    )
    assert leaves()["models.dir"].flag == "--model-dir"


def test_kinds_follow_from_the_type() -> None:
    expected = {
        "server.host": (Kind.TEXT, ()),
        "server.port": (Kind.INT, ()),
        "server.max_body": (Kind.SIZE, ()),
        "server.keepalive": (Kind.DURATION, ()),
        "models.dir": (Kind.PATHS, ()),
        "cache.enabled": (Kind.BOOL, ()),
        "cache.dir": (Kind.PATH, ()),
        "cache.memory_size": (Kind.SIZE, ("auto",)),
        "scheduler.prefill_chunk": (Kind.INT, ("auto",)),
        "sampling.top_p": (Kind.FLOAT, ()),
    }
    for path, kind in expected.items():
        assert (leaves()[path].kind, leaves()[path].words) == kind


def test_every_default_can_be_written_and_read_back(tmp_path: Path) -> None:
    for leaf in leaves().values():
        if leaf.default not in (None, ()):
            text = show(leaf, leaf.default)
            assert convert(leaf, text, base=tmp_path, from_text=True) == leaf.default


@pytest.mark.parametrize(
    ("path", "value", "text", "literal"),
    [
        ("cache.max_size", 8 * 10**9, "8GB", '"8GB"'),
        ("cache.max_size", 512 * 2**20, "512MiB", '"512MiB"'),
        ("cache.max_size", 1234567, "1234567", '"1234567"'),
        ("cache.max_size", 0, "0", '"0"'),
        ("cache.write_delay", 0.25, "0.25s", '"0.25s"'),
        ("cache.write_delay", 900.0, "15m", '"15m"'),
        ("sampling.temperature", 0.7, "0.7", "0.7"),
        ("cache.enabled", False, "false", "false"),
        ("scheduler.prefill_chunk", "auto", "auto", '"auto"'),
        ("scheduler.prefill_chunk", 64, "64", "64"),
        ("models.dir", (Path('/a"b'), Path("/c")), '/a"b:/c', '["/a\\"b", "/c"]'),
        ("cache.dir", None, "none", '"none"'),
    ],
)
def test_values_are_written_as_people_write_them(
    path: str, value: object, text: str, literal: str
) -> None:
    assert show(leaves()[path], value) == text
    assert toml_literal(leaves()[path], value) == literal


def test_with_values_changes_only_what_is_named() -> None:
    changed = with_values(Settings(), {"server.port": 1, "context_window": 99})
    assert (changed.server.port, changed.server.host) == (1, "127.0.0.1")
    assert changed.context_window == 99
    assert changed.cache == Settings().cache


def test_the_sample_is_a_settings_file_that_names_every_setting(tmp_path: Path) -> None:
    lines = sample_toml().split("\n")
    assert all(len(line) <= 100 for line in lines)
    live = [line[1:] for line in lines if line.startswith("#") and not line.startswith("# ")]
    (tmp_path / "omlx.toml").write_text("\n".join(live))
    resolved = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path, profiles=tmp_path)
    assert {origin.kind for origin in resolved.origins.values()} == {"file"}
    for path, leaf in leaves().items():
        if leaf.default not in (None, ()):
            group, value = leaf.group, resolved.settings
            value = getattr(value, group) if group else value
            assert getattr(value, leaf.key) == leaf.default, path
