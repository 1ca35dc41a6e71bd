"""What `omlx doctor` looks at, one module for each part of a machine.

Imports nothing, so that help stays fast.
"""
