"""Running a client: its exit code, its signals, its folder, and what it leaves behind."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omlx.errors import OmlxError
from omlx.launch.mirror import adopt, link
from omlx.launch.plan import Mirror, Plan
from omlx.launch.run import environment, folder_of, run, write_files

ENV = {"PATH": "/usr/bin:/bin"}


def script(folder: Path, text: str) -> Path:
    path = folder / "client"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_clients(tmp_path: Path, text: str, code: int) -> None:
    assert run(script(tmp_path, text), Plan(), ENV, tmp_path) == code


def test_it_gets_its_arguments_and_variables_and_not_those_that_mislead(tmp_path: Path) -> None:
    path = script(tmp_path, f'printf "%s|" "$@" > {tmp_path}/args; env > {tmp_path}/env')
    plan = Plan(("a b", "$HOME", ""), {"MINE": "1"}, unset=("THEIRS",))
    env = environment(plan, {**ENV, "THEIRS": "1", "MINE": "0", "KEPT": "k"})
    assert run(path, plan, env, tmp_path) == 0
    assert (tmp_path / "args").read_text() == "a b|$HOME||"
    seen = (tmp_path / "env").read_text()
    assert "MINE=1\n" in seen and "KEPT=k\n" in seen and "THEIRS" not in seen


def test_a_proxy_does_not_get_what_is_for_this_machine() -> None:
    env = environment(Plan(), {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.example"})
    assert env["NO_PROXY"] == "a.example,127.0.0.1,localhost,::1"
    assert env["no_proxy"] == "127.0.0.1,localhost,::1"
    assert "NO_PROXY" not in environment(Plan(), {})


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OmlxError, match="can't be started"):
        run(tmp_path / "none", Plan(), ENV, tmp_path)


_LAUNCHER = """
import sys
from pathlib import Path
from omlx.launch.plan import Plan
from omlx.launch.run import folder_of, run
root = Path(sys.argv[1])
with folder_of(root / "run", "client") as folder:
    sys.exit(run(root / "client", Plan(), {"PATH": "/usr/bin:/bin"}, root))
"""


def start_launcher(root: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(root)], cwd=Path(__file__).parents[3]
    )
    deadline = time.monotonic() + 30
    while not (root / "ready").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_goes_to_the_client_which_decides(tmp_path: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script(tmp_path, f"trap 'exit 42' {name}\ntouch {tmp_path}/ready\nwhile :; do sleep 0.05; done")
    process = start_launcher(tmp_path)
    process.send_signal(number)
    assert process.wait(30) == 42
    assert list((tmp_path / "run").iterdir()) == []


def test_an_interrupt_from_the_terminal_does_not_end_the_launcher(tmp_path: Path) -> None:
    """The terminal sends it to both; the client may go on after it."""
    script(tmp_path, f"touch {tmp_path}/ready\nwhile [ ! -e {tmp_path}/end ]; do sleep 0.05; done")
    process = start_launcher(tmp_path)
    process.send_signal(signal.SIGINT)
    (tmp_path / "end").touch()
    assert process.wait(30) == 0


def test_the_folder_is_private_and_goes(tmp_path: Path) -> None:
    with folder_of(tmp_path / "run", "mine") as folder:
        write_files(folder, {"a/b.json": "{}", "c": "ä"})
        assert (folder / "a" / "b.json").read_text() == "{}"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "c").stat().st_mode & 0o777 == 0o600
    assert not folder.exists()


def test_folders_of_launchers_that_died_are_removed(tmp_path: Path) -> None:
    (tmp_path / "pi-1" / "left").mkdir(parents=True)
    (tmp_path / "pi-x").mkdir()
    (tmp_path / "file-1").write_text("")
    (tmp_path / "link-1").symlink_to(tmp_path / "pi-x")
    with folder_of(tmp_path, "pi") as folder:
        assert list(folder.iterdir()) == []
        names = {path.name for path in tmp_path.iterdir()}
    assert names == {"pi-1", "pi-x", "file-1", "link-1"}


def test_a_folder_is_the_same_each_time_but_never_that_of_two(tmp_path: Path) -> None:
    """Its path is in the prompts of some clients."""
    with folder_of(tmp_path, "pi") as first, folder_of(tmp_path, "pi") as second:
        assert first != second and first.is_dir() and second.is_dir()
    with folder_of(tmp_path, "pi") as third:
        assert third == first
    assert list(tmp_path.iterdir()) == []


def test_launchers_at_the_same_time_have_a_folder_each(tmp_path: Path) -> None:
    """Each removes what was left, and takes nobody's that is just being made for such."""

    def enter(number: int) -> Path:
        with folder_of(tmp_path, f"c{number % 3}") as folder:
            (folder / "mine").write_text(str(number))
            assert (folder / "mine").read_text() == str(number)
            return folder

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(enter, range(2000)))) == 2000


@pytest.mark.parametrize("form", ["$!", '{\\"pid\\": $!}'])
def test_a_daemon_that_the_client_leaves_is_ended_and_others_are_not(
    tmp_path: Path, form: str
) -> None:
    other = subprocess.Popen(["sleep", "600"])
    (tmp_path / "a.pid").write_text(str(other.pid))
    path = script(
        tmp_path,
        f'sleep 600 >/dev/null 2>&1 &\necho "{form}" > {tmp_path}/b.pid\n'
        f"echo $! > {tmp_path}/seen\necho x > {tmp_path}/c.pid",
    )
    try:
        assert run(path, Plan(pid_files=("*.pid",)), ENV, tmp_path) == 0
        seen = int((tmp_path / "seen").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(seen, 0)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_mirror_shows_what_is_there_and_gives_back_what_came(tmp_path: Path) -> None:
    own, folder = tmp_path / "own", tmp_path / "folder"
    (own / "skills").mkdir(parents=True)
    (own / "auth.json").write_text("old")
    (own / "config.yaml").write_text("theirs")
    mirrors = (Mirror(own, "", ("config.yaml",), ("sessions",)),)
    link(folder, mirrors)
    write_files(folder, {"config.yaml": "ours"})
    assert (folder / "auth.json").read_text() == "old"
    (folder / "sessions" / "one").write_text("a session")
    (folder / "new.db").write_text("new")
    (folder / "daemon.pid").write_text("1")
    temporary = folder / "auth.json.tmp"
    temporary.write_text("fresh")
    temporary.replace(folder / "auth.json")  # as clients write
    adopt(folder, mirrors)
    seen = {path.name: path.read_text() for path in own.iterdir() if path.is_file()}
    assert seen == {"auth.json": "fresh", "config.yaml": "theirs", "new.db": "new"}
    assert (own / "sessions" / "one").read_text() == "a session"


def test_a_mirror_of_nothing(tmp_path: Path) -> None:
    mirrors = (Mirror(tmp_path / "none", "data", ("x",)),)
    link(tmp_path / "folder", mirrors)
    adopt(tmp_path / "folder", mirrors)
    assert not (tmp_path / "none").exists()
