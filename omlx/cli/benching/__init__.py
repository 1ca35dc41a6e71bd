"""The commands of `omlx bench`, one module each.

Imports nothing, so that the help of one needs none of the others.
"""
