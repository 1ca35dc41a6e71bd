"""Architectures that are newer than the mlx-lm omlx is pinned to, one file each.

Knows nothing about weights on disk; imports nothing.
"""
