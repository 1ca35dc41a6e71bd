"""Point 5: what goes wrong says so, ends with another exit code than 0, and does not loop."""

import json
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.install.session import Session, session, wait_until
from tests.acceptance.install.test_02_service import ask, free_port
from tests.live import REPOSITORY


@pytest.fixture
def login(tmp_path: Path, tiny_model: Path) -> Iterator[Session]:
    with session(tmp_path) as found:
        found.home.mkdir()
        configure(found, f"[models]\ndir = ['{tiny_model.parent}']\n")
        yield found


def configure(login: Session, text: str, port: int | None = None) -> int:
    port = port or free_port()
    (login.home / "config.toml").write_text(f"{text}[server]\nport = {port}\n")
    return port


def test_the_port_is_taken(login: Session, tiny_model: Path, figure: Figure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        configure(login, f"[models]\ndir = ['{tiny_model.parent}']\n", port)
        for words in (("serve",), ("start",), ("service", "install"), ("start",)):
            done = login.omlx(*words)
            assert done.returncode == 1, (words, done.stderr)
            assert f"127.0.0.1:{port}" in done.stderr and "process" in done.stderr, done.stderr
        assert login.service()["state"] == "stopped"  # and does not try again unseen
        done = login.omlx("doctor")
        assert done.returncode == 1 and f"broken  port: omlx can't listen on 127.0.0.1:{port}" in (
            done.stdout
        )
    assert login.omlx("start").returncode == 0
    figure("port taken: serve, start and service exit with 1 and name the process; doctor as well")


@pytest.mark.parametrize("fault", ["syntax", "bytes", "folder"])
def test_an_unreadable_config(login: Session, fault: str, figure: Figure) -> None:
    assert login.omlx("service", "install").returncode == 0
    config = login.home / "config.toml"
    config.unlink()
    if fault == "folder":
        config.mkdir()
    else:
        config.write_bytes(b"[server\n" if fault == "syntax" else b"\xff\xfe[")
    for words in (("serve",), ("start", "--port", "1"), ("config", "get", "server.port")):
        done = login.omlx(*words)
        assert done.returncode == 2 and str(config) in done.stderr, (words, done.stderr)
    done = login.omlx("restart")
    assert done.returncode == 1 and str(config) in done.stderr, done.stderr
    assert login.service()["state"] == "stopped"
    done = login.omlx("doctor")
    assert done.returncode == 1 and "broken  settings: " in done.stdout
    assert login.omlx("stop").returncode == 0
    figure(f"config unreadable ({fault}): serve and start exit with 2, restart with 1, none loops")


def test_a_crash_loop_ends(login: Session, figure: Figure) -> None:
    """As at login: nobody waits for the start, and every one fails."""
    assert login.omlx("service", "install").returncode == 0
    assert login.omlx("stop").returncode == 0
    configure(login, "[models]\ndir = ['/no/such/folder']\n")
    login.systemctl("start", "omlx.service")
    wait_until(lambda: login.service()["state"] == "waiting", 30)
    done = login.omlx("status")
    assert done.returncode == 1 and "/no/such/folder" in done.stdout, done.stdout
    seconds = wait_until(lambda: login.service()["state"] == "failed", 400)
    told = login.service()
    assert told["exit_code"] == 1
    said = (login.home / "logs" / "service.log").read_text()
    assert said.count("error: the model folder /no/such/folder") == 8, said
    done = login.omlx("doctor")
    assert done.returncode == 1 and "broken  service: " in done.stdout
    assert "/no/such/folder" in login.omlx("logs").stdout
    figure(
        f"crash loop: eight starts within {seconds:.0f} s, then down; status, logs, doctor say why"
    )


def test_a_full_disk(login: Session, tiny_model: Path, figure: Figure) -> None:
    folder = login.user / "small"
    folder.mkdir()
    done = login.run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder))
    assert done.returncode == 0, done.stderr
    login.run("dd", "if=/dev/zero", f"of={folder}/fill", "bs=64k")
    port = configure(
        login, f"[models]\ndir = ['{tiny_model.parent}']\n[cache]\ndir = '''{folder}/cache'''\n"
    )
    done = login.omlx("service", "install")
    assert done.returncode == 0, done.stderr
    assert ask(f"http://127.0.0.1:{port}") == 200
    assert "nothing is stored on disk" in done.stderr, done.stderr
    assert "No space left" in done.stderr, done.stderr
    done = login.omlx("doctor")
    assert done.returncode == 1 and "No space left" in done.stdout, done.stdout
    figure("full disk: serves, says that nothing is stored; doctor calls the disk broken")


def test_a_stale_pid(login: Session, figure: Figure) -> None:
    state = login.home / "state" / "server-1.json"
    state.parent.mkdir()
    for pid in (2**22 + 5, 1):  # of nobody, and of another program
        state.write_text(json.dumps({"pid": pid, "address": "http://127.0.0.1:1", "version": "0",
                                     "process_started": 5.0}))  # fmt: skip
        assert f"stale: {state}" in login.omlx("status").stdout
        assert str(state) in login.omlx("doctor").stdout
        assert f"removed {state}" in login.omlx("stop").stderr
        assert not state.exists()
    state.write_text(json.dumps({"pid": 1, "address": "http://127.0.0.1:1", "version": "0",
                                 "process_started": 5.0}))  # fmt: skip
    assert login.omlx("service", "install").returncode == 0
    assert not state.exists() and Path("/proc/1").exists()
    figure("stale pid: told by status and doctor, removed by stop and by a service's start")


def test_two_installations(login: Session, tmp_path: Path, figure: Figure) -> None:
    assert login.omlx("service", "install").returncode == 0
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    python = str(other / "bin" / "python")
    (packages,) = (other / "lib").glob("*/site-packages")
    (packages / "all.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_paths()['purelib']}\n")
    for words in (("service", "status"), ("start",), ("doctor",)):
        done = login.run(python, "-m", "omlx", *words)
        assert "another installation" in done.stdout + done.stderr, (words, done.stderr)
    done = login.run(python, "-m", "omlx", "service", "install")
    assert done.returncode == 0 and "another installation" not in done.stderr, done.stderr
    assert python in login.unit.read_text()
    brew = login.unit.with_name("homebrew.omlx.service")
    brew.write_text("[Service]\n")
    assert str(brew) in login.omlx("service", "status").stderr
    figure("two installations: a warning names both; install takes the service over")
