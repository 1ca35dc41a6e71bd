"""A task in a process of its own: results, progress, refusals, deaths."""

import os
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from omlx.engine.task import run_task
from omlx.errors import EngineError, ModelError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose task does what its spec says."""
    (tmp_path / "odd_task.py").write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from omlx.errors import ModelError
            from omlx.models.task import run_as_main

            def task(spec, progress):
                print("a library says something", flush=True)
                progress(1, 2, "first")
                if "refuse" in spec:
                    raise ModelError("no such thing", hint="try another")
                if "die" in spec:
                    print("last words", file=sys.stderr, flush=True)
                    os.kill(os.getpid(), 9)
                if "raise" in spec:
                    raise ZeroDivisionError("a bug")
                progress(2, 2, "first")
                if "wait" in spec:
                    time.sleep(1000)
                return {"pid": os.getpid(), "got": spec["value"]}

            sys.exit(run_as_main(task))
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return "odd_task"


def test_a_result_comes_back_and_the_process_is_gone(module: str) -> None:
    seen: list[tuple[int, int, str]] = []
    spec = {"value": ["é", 1.5]}
    found = run_task(module, spec, progress=lambda *step: seen.append(step))
    assert found["got"] == ["é", 1.5]
    assert seen == [(1, 2, "first"), (2, 2, "first")]
    assert not psutil.pid_exists(found["pid"])


def test_a_refusal_is_the_error_of_the_task(module: str) -> None:
    with pytest.raises(ModelError, match="no such thing") as caught:
        run_task(module, {"refuse": True})
    assert caught.value.hint == "try another"


@pytest.mark.parametrize(
    ("how", "said"), [("die", "exit code -9.*last words"), ("raise", "ZeroDivisionError: a bug")]
)
def test_a_death_is_told_with_its_last_words(module: str, how: str, said: str) -> None:
    with pytest.raises(EngineError, match=f"(?s)odd_task ended with .*{said}"):
        run_task(module, {how: True})


def test_a_module_that_is_not_there_is_told() -> None:
    with pytest.raises(EngineError, match="No module named"):
        run_task("omlx.no_such_task", {})


def test_an_interrupt_ends_the_process(module: str) -> None:
    def interrupt(done: int, total: int, stage: str) -> None:
        if done == total:
            raise KeyboardInterrupt

    before = set(psutil.Process().children())
    with pytest.raises(KeyboardInterrupt):
        run_task(module, {"wait": True, "value": 1}, progress=interrupt)
    assert set(psutil.Process().children()) <= before
