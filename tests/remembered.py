"""What a test made of a class, so that a fixture can close it."""

from typing import Any

import pytest


def made_of(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that every instance of `kind` joins which begins from now on."""
    made: list[Any] = []
    begin = kind.__init__

    def remembered(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", remembered)
    return made
