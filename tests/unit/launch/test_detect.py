"""Finding clients by fake executables: old, hanging, crashing, and talking garbage."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.launch.catalog import Client, Endpoint, Kind
from omlx.launch.detect import State, detect, numbers

CLIENT = Client(
    "mine", "Mine", Kind.AGENT, Endpoint.CHAT, 1000, ("mine", "mine2"), least_version="1.10.0"
)


def put(folder: Path, script: str, name: str = "mine") -> dict[str, str]:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "MY_API_KEY": "secret", "EDITOR": "vi"}


@pytest.mark.parametrize(
    ("script", "state", "version"),
    [
        ("echo mine 1.10.0", State.READY, "1.10.0"),
        ("echo 'v2.0.1-beta+x (Mine)'", State.READY, "2.0.1"),
        ("echo 1.10.0 >&2", State.READY, "1.10.0"),
        ("echo 1.9.99", State.TOO_OLD, "1.9.99"),
        ("echo 0.0.1", State.TOO_OLD, "0.0.1"),
        ("echo hello", State.BROKEN, None),
        ("exit 0", State.BROKEN, None),
        ("echo 9.9.9; exit 3", State.BROKEN, None),
        ("kill -SEGV $$", State.BROKEN, None),
        ("printf '\\377\\376\\000garbage'; head -c 5000000 /dev/zero", State.BROKEN, None),
    ],
)
def test_what_its_version_says(
    tmp_path: Path, script: str, state: State, version: str | None
) -> None:
    found = detect(CLIENT, put(tmp_path, script))
    assert (found.state, found.version, found.path) == (state, version, tmp_path / "mine")
    assert bool(found.reason) == (state is not State.READY)


def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    env = put(tmp_path, f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    found = detect(CLIENT, env, timeout_s=1.0)
    assert found.state is State.SLOW and "within 1 s" in found.reason
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        os.kill(pid, signal.SIGKILL)
        return True


def test_not_there_not_executable_or_not_a_program(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    assert detect(CLIENT, env).state is State.NOT_FOUND
    (tmp_path / "mine").write_text("#!/bin/sh\necho 9.9.9\n")
    found = detect(CLIENT, env)
    assert (found.state, found.path) == (State.NOT_FOUND, None)
    assert found.reason == "no mine or mine2 on PATH"
    (tmp_path / "mine").chmod(0o755)
    (tmp_path / "mine").write_text("#!/no/such/interpreter\n")
    assert "it can't be run" in detect(CLIENT, env).reason


def test_the_second_name_is_taken_where_the_first_is_missing(tmp_path: Path) -> None:
    found = detect(CLIENT, put(tmp_path, "echo 1.10.0", "mine2"))
    assert (found.state, found.path) == (State.READY, tmp_path / "mine2")


def test_it_is_told_no_keys_has_no_terminal_and_does_not_look_for_updates(tmp_path: Path) -> None:
    env = put(tmp_path, f"env > {tmp_path}/env; cat > {tmp_path}/in; tty; echo 2.0.0")
    assert detect(CLIENT, env).state is State.READY
    seen = (tmp_path / "env").read_text()
    assert "secret" not in seen and "EDITOR=vi" in seen and "DISABLE_AUTOUPDATER=1" in seen
    assert (tmp_path / "in").read_text() == ""


def test_the_arguments_and_the_pattern_are_the_clients_own(tmp_path: Path) -> None:
    client = replace(CLIENT, version_args=("-V", "x"), version_pattern=r"build (\d+\.\d+)")
    found = detect(client, put(tmp_path, 'echo "$1 $2 0.1.1 build 7.1"'))
    assert found.version == "7.1"


def test_versions_compare_as_numbers() -> None:
    assert numbers("1.10") > numbers("1.9.9") and numbers("1.0") == numbers("1") == numbers("1.0.0")
    assert numbers("2026.9.6") < numbers("2026.10.1") and numbers("") == ()
