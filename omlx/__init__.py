"""omlx: serve local language models on MLX and never pay twice for a prefix.

This package's root knows its version and nothing else.
"""

__version__ = "0.1.0"
