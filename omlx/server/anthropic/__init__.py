"""The Anthropic dialect.

Knows nothing about engines beyond the internal request.
"""
