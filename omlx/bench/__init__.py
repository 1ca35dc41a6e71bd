"""Load generation: requests with honest timing, servers to measure, and results.

Knows nothing about terminals.
"""
