"""Which module knows which client.

Knows nothing about what they do.
"""

from collections.abc import Mapping
from types import MappingProxyType

from omlx.launch import claude_code, codex, copilot, opencode, pi
from omlx.launch.plan import Recipe

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "claude-code": claude_code.RECIPE,
        "codex": codex.RECIPE,
        "opencode": opencode.RECIPE,
        "copilot": copilot.RECIPE,
        "pi": pi.RECIPE,
    }
)
