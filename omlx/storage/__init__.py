"""Storage: blocks as bytes on disk.

Knows nothing about mlx, models or tokens' meaning.
"""
