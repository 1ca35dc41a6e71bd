"""Command line: commands and views.

Nothing else imports it.
"""
