"""A clean environment for every test."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

KEPT = ("OMLX_TEST_MODELS", "OMLX_TEST_CLIENTS")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No setting, proxy or home of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith(("OMLX_", "SANIC_")) and name not in KEPT:
            monkeypatch.delenv(name)
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setenv("OMLX_HOME", str(tmp_path / "omlx-home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield


@pytest.fixture(autouse=True)
def clean_logging() -> Iterator[None]:
    """A command that sets logging up in this process does so for its own test only."""
    logger = logging.getLogger("omlx")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(scope="module", autouse=True)
def no_engine_outlives_its_tests() -> Iterator[None]:
    """A failed test leaves its engine running; the others hear of the failure all the same.

    Two threads must not use mlx beside each other: `clear_cache` of one waits for all streams with
    the interpreter held, which a read of the other's needs, and both wait for ever.
    """
    yield
    harness = sys.modules.get("tests.fakes.harness")  # imports mlx, which most tests don't need
    if harness is not None:
        harness.stop_all()
