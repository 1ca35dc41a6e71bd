"""Cache: blocks of model state in memory and on disk, found by token prefix.

Knows nothing about text, HTTP or scheduling.
"""
