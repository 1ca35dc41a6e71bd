"""Setups that tests of clients share."""

from pathlib import Path

from omlx.launch.plan import Setup

SECRET = "omlx-secret-key"


def setup(home: Path = Path("/home/user"), **changes: object) -> Setup:
    """A server with a key, and a model with a window of 100,000 tokens."""
    values: dict[str, object] = {
        "base": "http://127.0.0.1:8000",
        "model": "org/coder-30b",
        "small_model": "small-1b",
        "window": 100_000,
        "folder": Path("/run/folder"),
        "home": home,
        "key": SECRET,
        "args": ("--verbose", "a prompt"),
    }
    return Setup(**{**values, **changes})
