"""Engine: token ids in, token events out.

Imports nothing by itself, so that the server process stays free of mlx.
"""
