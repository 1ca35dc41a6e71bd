"""A TOML file that lists every setting with its default, all commented out.

Knows nothing about where such a file is kept.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from omlx.settings.leaf import Kind, Leaf, leaves
from omlx.settings.value import expected, show

_EXAMPLES = {
    "engine.ttl": '"15m"',
    "models.max_loaded": "2",
    "server.api_key": '"choose-one"',
    "server.metrics_key": '"choose-another"',
    "server.default_model": '"SmolLM2-135M-Instruct"',
    "server.allowed_hosts": '["gpu.lan"]',
    "server.cors_origins": '["https://app.example"]',
    "server.tls_cert": '"~/tls/cert.pem"',
    "server.tls_key": '"~/tls/key.pem"',
    "server.unix_socket": '"~/.omlx/omlx.sock"',
    "models.dir": '["~/models"]',
    "models.alias": '{ fast = "Qwen3-0.6B-4bit" }',
    "cache.dir": '"~/.omlx/cache"',
    "log.file": '"~/.omlx/logs/serve.log"',
    "cache.max_write_per_day": '"50GB"',
    "cache.warm_prompts": '["prompts/agent.json"]',
    "agent.scale_tokens": "200000",
    "context_window": "32768",
    "thinking": "true",
}
_HEAD = """\
# Settings that hold before any other file is read. As omlx ships it, nothing is set here: every
# line shows a default (or, marked so, an example). Copy what you need into config.toml in
# OMLX_HOME (~/.omlx), or into omlx.toml in the folder that you start omlx from.
"""
_MODEL_TABLE = """\
# For the models that a pattern matches. It beats the general tables; in one file, the pattern with
# the most letters beats the others.
#[model."SmolLM2*"]
#context_window = 4096
#sampling.temperature = 0.2

# A profile is a name of its own for the same model in memory: here, for every model that the
# pattern matches, its id with ":exact" after it. It beats all other settings but a request's own.
#[model."SmolLM2*".profile.exact]
#sampling.temperature = 0.0
"""


def toml_literal(leaf: Leaf, value: object) -> str:
    """The value as TOML has it."""
    if leaf.kind is Kind.PATHS:
        paths = cast(tuple[Path, ...], value)
        return "[" + ", ".join(_quote(str(path)) for path in paths) + "]"
    if leaf.kind is Kind.TEXTS:
        return "[" + ", ".join(_quote(text) for text in cast(tuple[str, ...], value)) + "]"
    if leaf.kind is Kind.NAMES:
        pairs = cast(tuple[tuple[str, str], ...], value)
        return "{ " + ", ".join(f"{_quote(a)} = {_quote(b)}" for a, b in pairs) + " }"
    text = show(leaf, value)
    plain = leaf.kind in (Kind.BOOL, Kind.INT, Kind.FLOAT) and value not in leaf.words
    return text if plain else _quote(text)


def sample_toml() -> str:
    """The whole file; the same on every machine."""
    return "\n".join([_HEAD, *_tables(), _MODEL_TABLE])


def _tables() -> Iterator[str]:
    group = ""
    block: list[str] = []
    ordered = sorted(leaves().values(), key=lambda leaf: leaf.group != "")
    for leaf in ordered:
        if leaf.group != group:
            yield "\n".join([*block, ""])
            group, block = leaf.group, [f"#[{leaf.group}]"]
        has_default = leaf.default not in (None, ())
        mark = "" if has_default else "   # an example; not set by default"
        value = toml_literal(leaf, leaf.default) if has_default else _example(leaf)
        block += [_comment(leaf.option.help), f"#{leaf.key} = {value}{mark}"]
    yield "\n".join([*block, ""])


def _example(leaf: Leaf) -> str:
    if leaf.path in _EXAMPLES:
        return _EXAMPLES[leaf.path]
    assert leaf.kind in (Kind.INT, Kind.FLOAT), expected(leaf)
    neutral = {"sampling.max_tokens": "4096", "sampling.top_k": "40", "sampling.top_p": "0.95"}
    return neutral.get(leaf.path, "0.0" if (leaf.option.low or 0) <= 0 else "1.0")


def _comment(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# "))


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
