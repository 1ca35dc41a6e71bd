"""Coding agents that use a local server: which are installed, how each is set up and started.

Knows nothing about the command line; nothing is imported here.
"""
