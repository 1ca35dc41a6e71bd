"""The names of the operations that have kernels, for those who must not import mlx.

Knows nothing about what they do; a test compares them with the registry.
"""

NAMES = ("flat_rows", "qmm_small", "gemm_small", "norm_qkv", "norm_gate_up", "qk_rope")
