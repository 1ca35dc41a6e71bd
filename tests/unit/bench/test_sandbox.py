"""Programs of models run within limits, and how they ended is told.

Knows nothing about models.
"""

import os
import socket
import sys

import pytest

from omlx.bench.sandbox import Outcome, run_program


def test_a_program_that_ends_has_passed() -> None:
    ran = run_program("print('hello')\nassert 1 + 1 == 2")
    assert (ran.outcome, ran.said) == (Outcome.PASSED, "hello\n")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("assert 1 + 1 == 3", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit(0)", ""),
        ("import os; os._exit(0)", ""),
        ("x = [0] * 10**9", "MemoryError"),
        ("open('f', 'wb').write(bytes(10**8))", "File too large"),
        ("raise ValueError('\\udc80')", "ValueError"),
    ],
)
def test_what_fails_or_leaves_early_has_not_passed(source: str, said: str) -> None:
    ran = run_program(source)
    assert ran.outcome is Outcome.FAILED
    assert said in ran.said


def test_what_does_not_end_is_ended() -> None:
    ran = run_program("import time; time.sleep(1000)", wall_s=0.5)
    assert ran.outcome is Outcome.TIMED_OUT


def test_what_floods_its_output_is_ended() -> None:
    ran = run_program("while True: print('x' * 100_000)", wall_s=60.0)
    assert ran.outcome is Outcome.FAILED
    assert len(ran.said) <= 400


def test_a_program_sees_neither_our_folder_nor_our_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    here = os.getcwd()  # noqa: PTH109
    ran = run_program(f"import os\nprint(os.environ)\nassert os.getcwd() != {here!r}")
    assert ran.outcome is Outcome.PASSED
    assert "s3cret" not in ran.said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="namespaces are Linux's")
def test_the_network_is_gone_or_it_is_said_that_it_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ran = run_program(f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)")
    assert ran.had_network is (ran.outcome is Outcome.PASSED)
