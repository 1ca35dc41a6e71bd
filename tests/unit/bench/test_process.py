"""Programs of a bench: started, watched, and never left behind."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from omlx.bench.failure import BenchError
from omlx.bench.process import Program, python_path

_FAMILY = """
import os, signal, subprocess, sys, time
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def _family(*, stubborn: bool = False, **fields: object) -> Program:
    command = [sys.executable, "-c", _FAMILY.format(stubborn=stubborn)]
    return Program(command, name="the family", **fields)  # type: ignore[arg-type]


def _child(program: Program) -> int:
    program.wait_until(lambda: "child" in program.log_text(), timeout_s=30)
    return int(program.log_text().split()[1])


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_nothing_is_left_after_it() -> None:
    with _family() as program:
        child, pid = _child(program), program.pid
        assert program.is_running
        assert program.memory_bytes() > 1_000_000
        assert not _is_gone(child)
    assert _is_gone(pid) and _is_gone(child)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(error: type[BaseException]) -> None:
    with pytest.raises(error), _family() as program:
        child = _child(program)
        raise error
    assert _is_gone(program.pid) and _is_gone(child)


def test_a_child_that_ignores_sigterm_is_killed_after_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omlx.bench.process._ORPHANS_S", 0.1)
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); import time; "
    code = _FAMILY.replace('"import time; ', f'"{ignoring}print(1, flush=True); ')
    with Program([sys.executable, "-c", code.format(stubborn=False)], name="one") as program:
        child = _child(program)
        program.wait_until(lambda: program.log_text().endswith("1\n"), timeout_s=30)
        assert program.stop() is True
        assert _is_gone(child)


def test_one_that_ignores_sigterm_is_killed() -> None:
    with _family(stubborn=True) as program:
        child = _child(program)
        assert program.stop(timeout_s=0.2) is False
        assert _is_gone(program.pid) and _is_gone(child)


def test_one_that_ends_by_itself_says_so() -> None:
    with Program([sys.executable, "-c", "import time; time.sleep(600)"], name="one") as program:
        assert program.stop() is True
        assert not program.is_running


def test_a_child_whose_parent_was_killed_goes_as_well() -> None:
    with _family() as program:
        child = _child(program)
        program.memory_bytes()  # looks at the family
        os.kill(program.pid, signal.SIGKILL)
    assert _is_gone(child)


def test_one_that_ends_before_it_is_ready() -> None:
    code = "import sys; print('no room'); sys.exit(3)"
    with (
        pytest.raises(BenchError, match="ended before it was ready") as caught,
        Program([sys.executable, "-c", code], name="one") as program,
    ):
        program.wait_until(lambda: False, timeout_s=30)
    assert "(exit code 3)" in caught.value.message
    assert "no room" in caught.value.message


def test_one_that_is_never_ready() -> None:
    with (
        pytest.raises(BenchError, match="was not ready after 0 s"),
        Program([sys.executable, "-c", "import time; time.sleep(600)"], name="one") as program,
    ):
        program.wait_until(lambda: False, timeout_s=0.05)
    assert not program.is_running


def test_what_can_not_be_started(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="one cannot be started: ") as caught:
        Program([str(tmp_path / "none")], name="one").start()
    assert "No such file" in caught.value.message


def test_the_log_is_where_it_was_told_and_another_one_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Program([sys.executable, "-c", "print('x')"], name="one", log=log) as program:
        program.wait_until(lambda: not program.is_running, timeout_s=30)
    assert log.read_text() == "x\n"
    with _family() as program:
        _child(program)
    assert program.log_text() == ""


def test_only_the_end_of_a_long_log_is_shown() -> None:
    code = "print('\\n'.join(str(n) for n in range(100_000)))"
    with Program([sys.executable, "-c", code], name="one") as program:
        program.wait_until(lambda: not program.is_running, timeout_s=30)
        lines = program.log_tail().splitlines()
    assert lines[-1] == "99999"
    assert len(lines) == 12


def test_it_runs_in_a_session_of_its_own() -> None:
    with _family() as program:
        assert os.getsid(program.pid) == program.pid != os.getsid(0)


def test_a_child_finds_this_omlx() -> None:
    path = python_path({"PYTHONPATH": "/x", "A": "b"})
    assert path["A"] == "b"
    assert path["PYTHONPATH"].endswith(os.pathsep + "/x")
    assert (Path(path["PYTHONPATH"].split(os.pathsep)[0]) / "omlx").is_dir()


def test_closing_twice_is_nothing() -> None:
    program = _family()
    program.close()
    program.start()
    program.close()
    program.close()
    assert not program.is_running
