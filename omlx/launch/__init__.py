"""Starts servers in the background, and the programs that talk to them.

Imports nothing, so that one part can be had without the others.
"""
