"""The real binary in the background, on a tiny random model."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import models
from tests.live import REPOSITORY, Live, command, run_omlx, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_served_model(tmp_path_factory.mktemp("models"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class Background:
    """The background of one home folder; what is left in it is stopped at the end."""

    def __init__(self, home: Path, model: Path) -> None:
        self.home, self.model = home, model
        self.port = free_port()

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run_omlx(*args, home=self.home)

    def start(self, *args: str, port: int | None = None) -> dict[str, Any]:
        done = self.run("start", *self.options(*args, port=port), "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def options(self, *args: str, port: int | None = None) -> list[str]:
        given = ["--model-dir", str(self.model.parent), "--drain-timeout", "3s", *args]
        return [*given, "--port", str(self.port if port is None else port)]

    def status(self) -> dict[str, Any]:
        return json.loads(self.run("status", "--json").stdout)

    def servers(self) -> list[int]:
        return [server["pid"] for server in self.status()["servers"]]

    def log(self) -> str:
        return (self.home / "logs" / f"serve-{self.port}.log").read_text()


@pytest.fixture
def background(tiny_model: Path, tmp_path: Path) -> Iterator[Background]:
    found = Background(tmp_path / "home", tiny_model)
    try:
        yield found
    finally:
        found.run("stop", "--all")


def ended(pids: list[int]) -> bool:
    return all(
        not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        for pid in pids
    )


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def test_start_status_restart_and_stop(background: Background) -> None:
    first = background.start("--no-journal")
    pid, address = first["pid"], first["address"]
    assert (address, first["is_new"]) == (f"http://127.0.0.1:{background.port}", True)
    assert os.getsid(pid) == pid != os.getsid(0)
    (state,) = (background.home / "state").glob("server-*.json")
    assert state.stat().st_mode & 0o777 == 0o600
    (server,) = background.status()["servers"]
    assert (server["pid"], server["address"], server["is_outdated"]) == (pid, address, False)
    assert background.start()["is_new"] is False
    assert background.servers() == [pid]
    wait_until(lambda: "warmed up" in background.log())
    assert "[tiny]" in background.run("logs", "--model", "tiny").stdout

    done = background.run("restart", "--log-level", "debug", "--json")
    assert done.returncode == 0, done.stderr
    second = json.loads(done.stdout)
    assert second["address"] == address and second["pid"] != pid
    assert ended([pid])
    arguments = json.loads(state.read_text())["launched"]["arguments"]
    assert {"--no-journal", "--log-level=debug"} <= set(arguments)

    pids = family(second["pid"])
    done = background.run("stop")
    assert done.returncode == 0 and f"(process {second['pid']})" in done.stderr
    assert "killed" not in done.stderr
    assert not state.exists()
    wait_until(lambda: ended(pids))
    done = background.run("status")
    assert (done.returncode, done.stdout) == (1, "no server is running\n")
    assert background.run("stop").returncode == 0
    assert "stopping; requests may finish" in background.run("logs").stdout


def test_a_server_that_was_killed_is_stale_and_started_anew(background: Background) -> None:
    pid = background.start()["pid"]
    pids = family(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ended(pids))
    status = background.status()
    assert status["servers"] == []
    (stale,) = status["stale"]
    assert stale["reason"] == f"process {pid} has ended"
    again = background.start()
    assert again["is_new"] and background.servers() == [again["pid"]]


def test_a_stale_file_whose_pid_is_another_program_is_removed_and_not_signalled(
    background: Background,
) -> None:
    pid = background.start()["pid"]
    (path,) = (background.home / "state").glob("server-*.json")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ended([pid]))
    with subprocess.Popen(["sleep", "60"]) as other:
        state = json.loads(path.read_text())  # of one that began a minute ago: pids come back later
        state |= {"pid": other.pid, "process_started": state["process_started"] - 60}
        path.write_text(json.dumps(state))
        done = background.run("stop")
        assert done.returncode == 0
        assert f"process {other.pid} is another program now" in done.stderr
        assert other.poll() is None and not path.exists()
        other.kill()


def test_two_starts_at_once_make_one_server(background: Background) -> None:
    with ThreadPoolExecutor(2) as both:
        results = list(both.map(lambda _: background.start(), range(2)))
    assert sorted(result["is_new"] for result in results) == [False, True]
    assert len({result["pid"] for result in results}) == 1
    assert background.servers() == [results[0]["pid"]]


def test_what_does_not_stop_is_killed_with_its_engines(background: Background) -> None:
    pid = background.start("--preload", "always")["pid"]
    wait_until(lambda: "warmed up" in background.log())
    pids = family(pid)
    assert len(pids) > 1
    os.kill(pid, signal.SIGSTOP)  # it will not hear SIGTERM
    done = background.run("stop")
    assert done.returncode == 0, done.stderr
    assert "had to be killed" in done.stderr
    wait_until(lambda: ended(pids))
    assert background.status() == {"servers": [], "stale": []}


def test_a_server_in_the_foreground_is_seen_and_stopped(
    background: Background, tiny_model: Path
) -> None:
    live = Live("--model-dir", str(tiny_model.parent), home=background.home)
    assert background.servers() == [live.process.pid]
    done = background.run("logs")
    assert done.returncode == 1 and "stderr of process" in done.stderr
    stopped: list[subprocess.CompletedProcess[str]] = []
    thread = threading.Thread(target=lambda: stopped.append(background.run("stop")))
    thread.start()
    assert live.process.wait(30) == 0
    thread.join()
    live.kill()  # it has ended: closes what it wrote to
    assert stopped[0].returncode == 0


def test_several_servers_need_a_choice(background: Background) -> None:
    background.start()
    other = free_port()
    background.start(port=other)
    done = background.run("stop")
    assert done.returncode == 2
    assert str(background.port) in done.stderr and str(other) in done.stderr
    assert background.run("stop", "--port", str(other)).returncode == 0
    assert [s["address"] for s in background.status()["servers"]] == [
        f"http://127.0.0.1:{background.port}"
    ]
    background.start(port=other)
    assert background.run("stop", "--all").returncode == 0
    assert background.servers() == []


@contextmanager
def following(background: Background) -> Iterator[list[str]]:
    """`omlx logs -f`, with the lines that it prints."""
    lines: list[str] = []
    with subprocess.Popen(
        command("logs", "-f", "-n", "1000"),
        cwd=REPOSITORY,
        env={**os.environ, "OMLX_HOME": str(background.home)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        out = process.stdout
        reader = threading.Thread(target=lambda: lines.extend(out))
        reader.start()
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            reader.join()


def test_logs_are_followed_over_rotations(background: Background) -> None:
    """Every line is printed once, in files that each hold a fraction of them."""
    background.start("--log-max-size", "10kB", "--log-keep", "50", "--log-level", "debug")
    url = f"http://127.0.0.1:{background.port}/v1/chat/completions"
    body = json.dumps(
        {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    )

    def ask(number: int) -> None:
        import urllib.request

        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body.encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            assert response.status == 200

    with following(background) as lines:
        for number in range(150):
            ask(number)
        files = list((background.home / "logs").glob("serve-*.log*"))
        assert len(files) >= 3

        def written() -> list[str]:
            found = [line for file in files for line in file.read_text().splitlines()]
            return sorted(line for line in found if "prompt tokens" in line)

        files = list((background.home / "logs").glob("serve-*.log*"))
        wait_until(lambda: len(seen(lines)) >= 150)
        assert seen(lines) == written() and len(seen(lines)) == 150


def seen(lines: list[str]) -> list[str]:
    return sorted(line.rstrip("\n") for line in list(lines) if "prompt tokens" in line)


def test_a_start_that_fails_says_why(background: Background, tmp_path: Path) -> None:
    done = background.run("start", "--port", str(background.port))
    assert done.returncode == 1
    assert "error: no models in" in done.stderr and "omlx model pull demo" in done.stderr
    assert f"serve-{background.port}.log" in done.stderr
    assert "Traceback" not in done.stderr
    assert background.status() == {"servers": [], "stale": []}


def test_a_folder_of_python_files_does_not_disturb_a_start(
    background: Background, tmp_path: Path
) -> None:
    """It runs in the user's project, which may have a json.py or click.py of its own."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("json", "click", "omlx", "psutil"):
        (project / f"{name}.py").write_text("raise SystemExit('wrong module')\n")
    env = {**os.environ, "OMLX_HOME": str(background.home), "PYTHONPATH": str(REPOSITORY)}
    script = "import sys; from omlx.cli.main import run; sys.exit(run())"
    done = subprocess.run(
        [*command()[:1], "-P", "-c", script, "start", *background.options()],
        cwd=project, env=env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wait_until(lambda: "warmed up" in background.log(), timeout_s=60)  # its engine as well
