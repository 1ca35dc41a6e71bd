"""Point 5: the cases L1, L2 and L5, with servers in the background and under a service manager."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY, command, run_omlx, wait_until


class Home:
    """The folder of a user, whose servers are stopped at the end."""

    def __init__(self, path: Path, model: Path) -> None:
        self.path, self.model = path, model

    @property
    def env(self) -> dict[str, str]:
        """The environment of its commands; an OMLX_* of whoever runs the tests would be told."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
        return {**others, "OMLX_HOME": str(self.path)}

    def run(
        self, *args: str, env: Mapping[str, str] | None = None, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*args), cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
            env={**self.env, **(env or {})}, check=False, **how,
        )  # fmt: skip

    def configure(self, text: str) -> None:
        self.path.mkdir(exist_ok=True)
        (self.path / "config.toml").write_text(f"[models]\ndir = ['{self.model.parent}']\n{text}")

    def addresses(self) -> list[str]:
        status = json.loads(self.run("status", "--json").stdout)
        return [server["address"] for server in status["servers"]]


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> Iterator[Home]:
    found = Home(tmp_path / "home", tiny_model)
    try:
        yield found
    finally:
        found.run("stop", "--all")


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def at(port: int) -> str:
    return f"http://127.0.0.1:{port}"


# ---- L1


def test_l1_one_truth_on_the_port(home: Home, figure: Figure) -> None:
    """Changed in file, variable and flag; each restart serves there, and every command knows."""
    first, second, third, fourth = free_ports(4)
    home.configure(f"[server]\nport = {first}\n")
    assert home.run("start").returncode == 0
    assert home.addresses() == [at(first)]

    home.configure(f"[server]\nport = {second}\n")
    done = home.run("model", "load", "tiny")  # still found where it is
    assert done.returncode == 0, done.stderr
    assert home.run("restart").stdout.startswith(f"omlx serves at {at(second)}\n")
    assert home.addresses() == [at(second)]

    done = home.run("restart", env={"OMLX_SERVER_PORT": str(third)})
    assert done.stdout.startswith(f"omlx serves at {at(third)}\n")
    assert f"port {third} (env OMLX_SERVER_PORT) comes before {second} (file " in done.stderr
    assert home.addresses() == [at(third)]

    done = home.run("restart", "--port", str(fourth), env={"OMLX_SERVER_PORT": str(third)})
    assert done.stdout.startswith(f"omlx serves at {at(fourth)}\n")
    assert f"port {fourth} (cli --port) comes before {third} (env" in done.stderr
    assert home.run("restart").stdout.startswith(f"omlx serves at {at(fourth)}\n")  # kept
    assert home.addresses() == [at(fourth)]
    shown = home.run("config", "show", "--origin", env={"OMLX_SERVER_PORT": "1"}).stdout
    assert "env OMLX_SERVER_PORT" in shown
    figure("L1: file, variable, flag: 4 restarts on 4 ports, each found by status and model load")


# ---- L2


@contextmanager
def holding(port: int) -> Iterator[subprocess.Popen[str]]:
    """Another program that listens on a port."""
    code = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


@pytest.mark.parametrize("name", ["serve", "start"])
def test_l2_a_port_of_another_program(name: str, home: Home, figure: Figure) -> None:
    (port,) = free_ports(1)
    home.configure("")
    with holding(port) as other:
        done = home.run(name, "--port", str(port))
        assert done.returncode == 1, done.stderr
        assert f"process {other.pid} (" in done.stderr and f"port {port}" in done.stderr
        assert "Traceback" not in done.stderr
        assert other.poll() is None
    assert home.addresses() == []
    figure(f"L2: omlx {name} on a port of another program: exit code 1, names its pid and port")


def test_l2_a_port_of_an_older_server_of_ours(home: Home, figure: Figure) -> None:
    (port,) = free_ports(1)
    home.configure(f"[server]\nport = {port}\n")
    pid = json.loads(home.run("start", "--json").stdout)["pid"]
    done = home.run("serve")
    assert done.returncode == 1
    assert f"omlx runs on port {port} already, as process {pid}" in done.stderr
    again = home.run("start")
    assert again.returncode == 0 and again.stdout.startswith("omlx runs already at ")

    state = home.path / "state" / f"server-{port}.json"  # as a version before this one left it
    state.write_text(json.dumps({**json.loads(state.read_text()), "version": "0.0.1"}))
    old = home.run("start")
    assert old.returncode == 1
    assert f"omlx 0.0.1 runs at {at(port)} already, as process {pid}" in old.stderr
    assert f"omlx restart --port {port}" in old.stderr
    assert "another version is installed" in home.run("status").stdout
    assert home.run("restart").returncode == 0
    assert home.addresses() == [at(port)]
    figure("L2: our own process named by pid and port; an older version is told, and restarted")


def test_l2_under_a_service_manager_lines_come_at_once(home: Home, figure: Figure) -> None:
    """stdout and stderr are pipes that stay open: what is said arrives while the server runs."""
    home.configure("")
    with subprocess.Popen(
        command("serve", "--port", "0", "--dashboard"),
        cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=home.env, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stderr is not None
            said = process.stderr.readline()
            assert said.startswith("omlx serves at ")
            line = process.stdout.readline()  # the dashboard's, every ten seconds
            assert line.endswith("\n") and process.poll() is None
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()
    figure("L2: lines on both pipes arrive while the server runs; SIGTERM ends it with 0")


def test_l2_a_crash_is_in_the_log_and_in_the_message(home: Home, figure: Figure) -> None:
    """A fault in a C library before the server answers: the trace is not lost."""
    home.configure("")
    broken = home.path / "broken"
    broken.mkdir()
    (broken / "uvloop.py").write_text("import ctypes\nctypes.string_at(0)\n")
    done = home.run(
        "start", "--port", "0", env={"PYTHONPATH": os.pathsep.join([str(broken), str(REPOSITORY)])}
    )
    log = home.path / "logs" / "serve-0.log"
    if "by SIGSEGV" not in done.stderr:  # the package is found before the broken one
        pytest.fail(done.stderr)
    assert done.returncode == 1
    assert "Segmentation fault" in done.stderr and str(log) in done.stderr
    assert "Segmentation fault" in log.read_text()
    figure("L2: a segmentation fault at start: exit code 1, its trace in the message and the log")


# ---- L5


def closed_home(tmp_path: Path) -> Path:
    """A folder that can't be made; root may write everywhere but in the kernel's own trees."""
    if os.geteuid() == 0:
        return Path("/proc/omlx-home")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    return folder / "home"


def test_l5_a_home_that_cannot_be_written(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    path = closed_home(tmp_path)
    done = run_omlx("start", "--model-dir", str(tiny_model.parent), "--port", "0", home=path)
    assert done.returncode == 1, done.stderr
    assert f"error: the state folder {path}/state cannot be written: " in done.stderr
    assert "hint: " in done.stderr and "Traceback" not in done.stderr
    figure("L5: a home that cannot be written: " + done.stderr.splitlines()[0])


def test_l5_a_home_that_is_a_file(tiny_model: Path, tmp_path: Path, figure: Figure) -> None:
    path = tmp_path / "home"
    path.write_text("")
    done = run_omlx("start", "--model-dir", str(tiny_model.parent), "--port", "0", home=path)
    assert done.returncode == 2
    assert str(path) in done.stderr and "Traceback" not in done.stderr
    figure("L5: a home that is a file: " + done.stderr.splitlines()[0])


@pytest.mark.parametrize("name", ["serve", "start"])
def test_l5_a_log_folder_that_is_a_file(name: str, home: Home, figure: Figure) -> None:
    home.configure(f"[log]\nfile = '{home.path}/logs/x.log'\n")
    (home.path / "logs").write_text("")
    done = home.run(name, "--port", "0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the log {home.path}/logs/x.log cannot be written: ")
    assert home.addresses() == []
    figure(f"L5: omlx {name} with a log folder that is a file: exit code 1, names it")


def test_l5_a_disk_that_is_full(home: Home, figure: Figure) -> None:
    """A process that may write no byte more to any file; nothing is started then."""
    home.configure("")
    (home.path / "logs").mkdir()

    def no_more_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = home.run("start", "--port", "0", preexec_fn=no_more_bytes)
    assert done.returncode == 1
    assert f"error: the state folder {home.path}/state cannot be written: " in done.stderr
    assert list((home.path / "logs").iterdir()) == []
    figure("L5: a disk that takes no more: said before anything is started")


if Path("/dev/full").exists():  # not on macOS

    def test_l5_a_log_on_a_full_disk_does_not_stop_a_server(home: Home, figure: Figure) -> None:
        home.configure("")
        (port,) = free_ports(1)
        options = ("--port", str(port), "--log-file", "/dev/full", "--preload", "always")
        done = home.run("start", *options)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: "loaded: tiny" in home.run("status").stdout, timeout_s=60)
        assert home.run("stop").returncode == 0
        figure("L5: with a log on a full disk a server starts, loads and stops")


@pytest.mark.parametrize("kind", ["a file", "missing", "below a file"])
def test_l5_the_cache_folder(kind: str, home: Home, figure: Figure) -> None:
    home.configure("")
    (home.path / "file").write_text("")
    name = {"a file": "file", "missing": "new/folder", "below a file": "file/x"}[kind]
    folder = home.path / name
    (port,) = free_ports(1)
    done = home.run("start", "--port", str(port), "--cache-dir", str(folder))
    assert done.returncode == 0, done.stderr
    said = f"warning: nothing is stored on disk: {folder}: "
    assert (said in done.stderr) == (kind != "missing")
    assert folder.is_dir() == (kind == "missing")
    figure(f"L5: a cache folder that is {kind}: " + ("made" if kind == "missing" else "said"))


def test_l5_a_model_folder_that_is_missing(home: Home, tmp_path: Path, figure: Figure) -> None:
    home.path.mkdir()
    done = home.run("start", "--port", "0", "--model-dir", str(tmp_path / "gone"))
    assert done.returncode == 1
    assert f"the model folder {tmp_path}/gone cannot be read: " in done.stderr
    assert "Traceback" not in done.stderr
    figure("L5: a model folder that is missing: exit code 1, names it")
