"""Models: where they are, how they load, how their text is made.

Imports nothing by itself, so that the server process stays free of mlx.
"""
