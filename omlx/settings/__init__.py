"""Settings: every option once, in layers, each value with its origin.

Knows nothing about what the options do.
"""
