"""Quantization by measurement: which format each matrix gets, and how its values are rounded.

Imports nothing, so that a command's help stays light.
"""
