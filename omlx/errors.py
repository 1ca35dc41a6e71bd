"""Errors that are the user's or the machine's fault, each with a hint that says the fix.

Knows nothing about how they are shown; our own bugs are assertions, not these.
"""

from collections.abc import Sequence


class OmlxError(Exception):
    """Base of all errors that a user can act on: one sentence and, where there is one, the fix."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(OmlxError):
    """The command was called wrongly (exit code 2)."""

    exit_code = 2


class SettingsError(OmlxError):
    """Settings that can't be used; `problems` lists all of them, each with its place."""

    exit_code = 2

    def __init__(self, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = tuple(problems)


class ModelError(OmlxError):
    """A model that is missing, unreadable or not supported."""


class StoreError(OmlxError):
    """A cache directory that can't be used at all."""


class EngineError(OmlxError):
    """An engine that could not start or had to stop."""


class ServerError(OmlxError):
    """A server that can't start as asked."""
