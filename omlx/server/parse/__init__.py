"""Splits what a model says: stop strings, reasoning, tool calls.

Knows nothing about tokens or dialects; no result depends on how the text was cut.
"""
