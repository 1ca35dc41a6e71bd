"""Server: HTTP and the dialects.

Never imports mlx.
"""
