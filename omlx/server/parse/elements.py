"""The formats of calls that are written as elements, as channels, or as an object behind a name.

Knows nothing about models or templates.
"""

from omlx.server.parse.harmony import HARMONY
from omlx.server.parse.keyed import GLM4, GLM47, LAGUNA, LONGCAT
from omlx.server.parse.said import CallFormat
from omlx.server.parse.spoken import FUNCTION_GEMMA, GEMMA4, KIMI_K2
from omlx.server.parse.tagged import MINICPM, MINIMAX_M2, MUSE_SPARK, QWEN3_CODER


def element_formats() -> tuple[CallFormat, ...]:
    """All of them."""
    return (
        QWEN3_CODER,
        GLM4,
        GLM47,
        LAGUNA,
        LONGCAT,
        MINIMAX_M2,
        MUSE_SPARK,
        MINICPM,
        KIMI_K2,
        HARMONY,
        GEMMA4,
        FUNCTION_GEMMA,
    )
