"""Kernels that mlx compiles at run time, behind plain functions.

Each operation has a reference in plain mlx, and variants whose sources are files in kernels/. A
variant is used only where `omlx kernel build` has verified it on this device. Knows nothing of
models. This module imports nothing, so that asking for the status is what loads mlx.
"""
