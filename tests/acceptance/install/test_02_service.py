"""Point 2: the unit is clean for systemd-analyze, and a real systemd runs the service."""

import http.client
import json
import os
import plistlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from xml.dom import minidom

import pytest

from omlx.launch.service.plist import plist_bytes
from omlx.launch.service.seal import sealed
from omlx.launch.service.spec import Spec
from omlx.launch.service.unit import STEPS_SINCE, unit_text
from tests.acceptance.conftest import Figure
from tests.acceptance.install.session import Session, session, wait_until
from tests.live import REPOSITORY, command


@pytest.fixture
def login(tmp_path: Path, tiny_model: Path) -> Iterator[Session]:
    with session(tmp_path) as found:
        found.home.mkdir()
        (found.home / "config.toml").write_text(
            f"[models]\ndir = ['{tiny_model.parent}']\n[server]\nport = {free_port()}\n"
        )
        yield found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def hostile_spec(folder: Path) -> Spec:
    home = folder / "a b %h $HOME \"q\" 's' \\x é"
    return Spec(
        program=(sys.executable, "-m", "omlx"),
        arguments=(f"--model-dir={home}", "--log-level=debug"),
        home=home,
        output=home / "logs" / "service.log",
        stop_s=25,
        environment={"OMLX_HOME": str(home), "PATH": os.environ["PATH"]},
    )


def test_the_unit_is_clean(tmp_path: Path, figure: Figure) -> None:
    shown = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True)
    version = int(shown.stdout.split()[1])
    unit = tmp_path / "omlx.service"
    unit.write_bytes(sealed(unit_text(hostile_spec(tmp_path), version=version).encode()))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(run_dir)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    newest = unit_text(hostile_spec(tmp_path), version=STEPS_SINCE)
    unit.write_bytes(newest.encode())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(run_dir)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    unknown = [line.split("'")[1] for line in done.stderr.splitlines()]
    allowed = [] if version >= STEPS_SINCE else ["RestartSteps", "RestartMaxDelaySec"]
    assert unknown == allowed
    figure(f"systemd-analyze verify ({version}): clean, with blanks, quotes, % and $ in paths")


def test_the_plist_is_well_formed(tmp_path: Path, figure: Figure) -> None:
    """As plutil -lint has it: XML that a strict parser takes, of the document type of Apple."""
    data = sealed(plist_bytes(hostile_spec(tmp_path)))
    document = minidom.parseString(data)
    assert document.doctype.publicId == "-//Apple//DTD PLIST 1.0//EN"
    assert document.documentElement.tagName == "plist"
    assert plistlib.loads(data)["WorkingDirectory"] == str(hostile_spec(tmp_path).home)
    figure("launchd plist: well-formed, comes back from plistlib with the same hostile paths")


def ask(address: str) -> int:
    url = urlsplit(address)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    with closing(connection):
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        with connection.getresponse() as response:
            response.read()
            return response.status


def test_a_service_from_install_to_uninstall(login: Session, figure: Figure) -> None:
    before = {path for path in login.user.rglob("*") if path.is_file()}
    done = login.omlx("service", "install", "--log-level", "debug")
    assert done.returncode == 0, done.stderr
    address = done.stdout.splitlines()[0].rpartition(" ")[2]
    assert "loginctl enable-linger ann" in done.stderr
    assert login.systemctl("is-enabled", "omlx.service") == "enabled"
    assert ask(address) == 200

    told = login.service()
    assert (told["state"], told["at_login"], told["restarts"]) == ("running", True, 0)
    assert told["arguments"] == ["--log-level=debug"]
    text = login.omlx("service", "status").stdout
    for word in ("service: systemd user unit, runs", "up ", "loaded: tiny", "memory", "cache"):
        assert word in text, text

    os.kill(told["pid"], signal.SIGKILL)
    wait_until(lambda: login.service()["state"] != "running", 10)
    again_s = wait_until(lambda: login.omlx("service", "status").returncode == 0, 90)
    after = login.service()
    assert after["pid"] != told["pid"] and after["restarts"] == 1
    assert ask(address) == 200

    done = login.omlx("restart")
    assert done.returncode == 0, done.stderr
    assert login.service()["pid"] != after["pid"] and login.service()["restarts"] == 0
    assert login.omlx("restart", "--log-level", "info").returncode == 2
    assert "omlx serves already" not in login.omlx("start").stdout
    assert "runs already" in login.omlx("start").stdout

    pid = login.service()["pid"]
    assert login.omlx("stop").returncode == 0
    assert login.service()["state"] == "stopped" and not Path(f"/proc/{pid}").exists()
    assert login.omlx("status").returncode == 1
    assert login.omlx("logs").returncode == 0
    assert login.omlx("start").returncode == 0 and ask(address) == 200

    done = login.omlx("service", "uninstall")
    assert done.returncode == 0, done.stderr
    assert not login.unit.exists()
    assert login.systemctl("is-active", "omlx.service") == "inactive"
    left = {path for path in login.user.rglob("*") if path.is_file()} - before
    outside = [path for path in left if login.home not in path.parents]
    assert outside == [], outside
    figure(
        "real systemd: install, chat, kill -9 (answers again after "
        f"{again_s:.0f} s), restart, stop, start, uninstall; nothing left outside ~/.omlx"
    )


def test_a_unit_that_was_edited(login: Session, figure: Figure) -> None:
    assert login.omlx("service", "install", "--no-start").returncode == 0
    login.unit.write_text(login.unit.read_text() + "\n[Service]\nNice=5\n")
    for words in (("install",), ("uninstall",)):
        done = login.omlx("service", *words)
        assert done.returncode == 1 and "--force" in done.stderr
    assert login.omlx("service", "uninstall", "--force").returncode == 0
    assert "Nice=5" in (login.home / "state" / "service.edited").read_text()
    figure("a unit that was edited: install and uninstall refuse it, --force keeps a copy")


def test_without_systemd(tmp_path: Path, figure: Figure) -> None:
    env = {n: v for n, v in os.environ.items() if not n.startswith(("OMLX_", "XDG_", "DBUS_"))}
    done = subprocess.run(
        command("service", "install"), capture_output=True, text=True, check=False, cwd=REPOSITORY,
        env={**env, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "none")},
    )  # fmt: skip
    assert done.returncode == 1 and "systemd runs no services for this user" in done.stderr
    assert "hint: omlx start" in done.stderr
    assert list(tmp_path.iterdir()) == []
    figure("no systemd: exit code 1, says omlx start, nothing written")
