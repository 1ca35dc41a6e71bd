"""Man pages, completions and reference pages, made from the live commands and settings.

Knows nothing that is not said there already; scripts/gen writes the files.
"""
