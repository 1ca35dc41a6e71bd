"""Which module knows which client.

Knows nothing about what they do.
"""

from collections.abc import Mapping
from types import MappingProxyType

from omlx.launch import (
    aider,
    claude_code,
    cline,
    codex,
    continue_cli,
    copilot,
    cursor,
    hermes,
    kilo,
    openclaw,
    opencode,
    pi,
    qwen_code,
    vibe,
    vscode_continue,
    zed,
)
from omlx.launch.plan import Recipe

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "aider": aider.RECIPE,
        "claude-code": claude_code.RECIPE,
        "cline": cline.RECIPE,
        "codex": codex.RECIPE,
        "continue": continue_cli.RECIPE,
        "copilot": copilot.RECIPE,
        "cursor": cursor.RECIPE,
        "hermes": hermes.RECIPE,
        "kilo": kilo.RECIPE,
        "openclaw": openclaw.RECIPE,
        "opencode": opencode.RECIPE,
        "pi": pi.RECIPE,
        "qwen-code": qwen_code.RECIPE,
        "vibe": vibe.RECIPE,
        "vscode-continue": vscode_continue.RECIPE,
        "zed": zed.RECIPE,
    }
)
