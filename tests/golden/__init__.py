"""Texts that change only together with a diff here: UPDATE_GOLDEN=1 writes what tests see."""

import os
from pathlib import Path


def same_as_golden(name: str, text: str) -> None:
    """Assert that `text` is the content of a golden file."""
    path = Path(__file__).parent / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"UPDATE_GOLDEN=1 rewrites {path}"
