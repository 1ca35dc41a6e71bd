"""Starting and stopping: addresses, state files, signals, whole processes."""

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from omlx.client import Launched, running_servers
from omlx.engine.request import EngineState
from omlx.errors import ModelError, ServerError
from omlx.models.locate import Discovery, discover
from omlx.server.holder import Holder, explained
from omlx.server.run import TextModels, run_server
from omlx.server.statefile import removing_state, write_state
from omlx.settings.build import load
from omlx.settings.schema import Server
from tests.fakes.engine import PATIENCE_S, FakePool, ScriptedEngine, silent
from tests.fakes.model_folder import write_model_folder
from tests.fakes.server import Plan, entry, running
from tests.unit.server import strict
from tests.unit.server.test_streams import Stream

ROOT = Path(__file__).parent.parent.parent.parent
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


# ---- where a server listens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_no_start_on_other_addresses_without_a_key(host):
    """X3: refused before anything is bound or started."""
    plan = Plan(server=Server(host=host, port=0))
    with pytest.raises(ServerError, match="needs an API key"), running(plan):
        pass
    assert plan.engines[0].state() is EngineState.STARTING


def test_a_start_on_other_addresses_with_a_key():
    with running(Plan(server=Server(host="0.0.0.0", port=0, api_key="k"))) as server:
        url = f"http://127.0.0.1:{server.port}/v1/models"
        assert server.http.get(url, headers={"x-api-key": "k"}).status_code == 200


def test_ipv6():
    with running(Plan(server=Server(host="::1", port=0))) as server:
        assert server.url.startswith("http://[::1]:")
        assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken(host):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        plan = Plan(server=Server(host=host, port=port))
        with pytest.raises(ServerError, match=f"{host}:{port}") as caught, running(plan):
            pass
    assert "--port" in caught.value.hint
    assert plan.engines[0].state() is EngineState.STARTING  # nothing was loaded for it


def test_an_address_that_is_none():
    plan = Plan(server=Server(host="host.invalid", port=0, api_key="k"))
    with pytest.raises(ServerError, match=r"host\.invalid"), running(plan):
        pass


# ---- draining


def test_a_stream_may_finish_while_the_server_stops():
    plan = Plan()
    plan.engines[0].script = silent
    with running(plan) as server:
        stream = Stream(server, "chat")
        stream.admit()
        stream.until("assistant")
        closing = threading.Thread(target=server.stop)
        closing.start()
        while not server.service.is_draining:
            stream.say("a")
            stream.until("a")
        stream.say("done")
        stream.finish()
        assert "[DONE]" in stream.until_closed()
        stream.sock.close()
        closing.join()
    assert server.engine.stopped_with > 0


def test_idle_connections_do_not_hold_a_server_up():
    """The limit is 10 s; a connection that waits for its next request is closed at once."""
    with running() as server, idle_connection(server.port) as idle:
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 8
        assert idle.recv(1) == b""


def test_no_request_is_taken_while_the_server_stops():
    with running() as server:
        server.service.drain()
        response = server.message()
        assert response.status_code == 503
        assert strict.anthropic_error(response.content).error.type == "overloaded_error"
        assert "retry-after" in response.headers
        assert server.http.get("/health").status_code == 503


def test_engines_are_stopped_when_one_can_not_be_started():
    class Unable(ScriptedEngine):
        def start(self, listener):
            raise ModelError("no such thing")

    plan = Plan(entries=[entry("a"), entry("b")], engines=[ScriptedEngine("a"), Unable("b")])
    with pytest.raises(ModelError), running(plan):
        pass
    assert plan.engines[0].state() is EngineState.STOPPED


# ---- whole processes


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model_folder(folder)
    return folder


class Process:
    """A server in a process of its own."""

    def __init__(self, home: Path, models: Path, script: str, **settings):
        options = {
            "home": str(home),
            "models": str(models),
            "script": script,
            "settings": {"server.port": "0", **settings},
        }
        self.home = home
        self.child = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.fakes.serve", json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = self.child.stdout.readline().strip()
        assert self.url, self.child.communicate()[1]
        self.port = int(self.url.rpartition(":")[2])

    def states(self) -> list[Path]:
        return list((self.home / "state").glob("server-*"))

    def end(self, *signals) -> dict:
        """Send signals, wait with patience; the report."""
        for number in signals:
            self.child.send_signal(number)
        out, err = self.child.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        lines = out.splitlines()
        report = json.loads(lines[-1]) if lines else {}
        return {**report, "rc": self.child.returncode}


@contextmanager
def process(*args, **settings):
    server = Process(*args, **settings)
    try:
        yield server
    finally:
        if server.child.poll() is None:
            server.child.kill()
            server.child.communicate()


@pytest.fixture
def home(tmp_path):
    return tmp_path


def test_a_served_request_imports_no_mlx(home, models):
    """The server process stays light: text by tokenizers and jinja2 only."""
    with process(home, models, "ok") as server:
        url = server.url + "/v1/chat/completions"
        response = httpx.post(url, json=CHAT, verify=False)
        answer = strict.completion(response.content)
        assert answer.choices[0].message.content == "Paris"
        (state,) = server.states()
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
        said = json.loads(state.read_text())
        assert (said["pid"], said["address"]) == (server.child.pid, server.url)
        assert state.name == f"server-{server.port}.json"
        assert set(said) == {
            "pid", "address", "version", "started", "process_started", "cache_dir", "drain_s",
        }  # fmt: skip
        report = server.end(signal.SIGTERM)
        assert server.states() == []
    assert (report["rc"], report["heavy"]) == (0, [])


@contextmanager
def idle_connection(port):
    """A keep-alive connection that has had an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        seen = b""
        while b"ready" not in seen:
            seen += sock.recv(65536)
        yield sock


@contextmanager
def endless_stream(port, path="/v1/messages"):
    body = json.dumps({**CHAT, "max_tokens": 100, "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(head.encode() + body)
        seen = b""
        while b"text_delta" not in seen:
            seen += sock.recv(65536)
        yield sock


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_with_an_idle_connection_and_a_running_stream(home, models, number):
    """Exit code 0 within the drain limit, and the stream is told why it ends."""
    drain = {"server.drain_timeout": "300ms"}
    with (
        process(home, models, "endless", **drain) as server,
        idle_connection(server.port) as idle,
        endless_stream(server.port) as stream,
    ):
        report = server.end(number)
        rest = b""
        while more := stream.recv(65536):
            rest += more
        assert b"event: error" in rest
        assert b"The server is stopping" in rest
        assert idle.recv(1) == b""
        assert server.states() == []
    assert (report["rc"], report["code"]) == (0, 0)
    assert report["stopped_with"] >= 1.0


def test_a_second_signal_does_not_wait(home, models):
    drain = {"server.drain_timeout": "10m"}
    with (
        process(home, models, "endless", **drain) as server,
        endless_stream(server.port),
    ):
        server.child.send_signal(signal.SIGTERM)
        wait_refused(server.port)
        report = server.end(signal.SIGTERM)
    assert report["rc"] == 130, "and that long before the limit, or it would have been waited for"


def wait_refused(port):
    """Return once the first signal has been heard."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
        except ConnectionError:
            return


# ---- the entry


def resolved(home, **cli):
    return load(cli={"server.port": "0", **cli}, env={"OMLX_HOME": str(home)}, cwd=home)


def test_without_models_the_message_names_the_command(home):
    with pytest.raises(ServerError, match="no model") as caught:
        run_server(resolved(home), Discovery((), ()), on_ready=print)
    assert "omlx model pull demo" in caught.value.hint


def test_a_default_model_that_is_not_there(home, models):
    settings = resolved(home, **{"server.default_model": "other"})
    with pytest.raises(ServerError, match="'other'") as caught:
        run_server(settings, discover([models]), on_ready=print)
    assert "fake" in caught.value.hint


def test_the_entry_gives_the_address_and_a_snapshot(home, models):
    seen = {}

    def on_ready(address):
        seen["address"] = address
        thread = threading.Thread(target=lambda: seen.update(status=seen["snapshot"]()))
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGTERM)

    code = run_server(
        resolved(home),
        discover([models]),
        on_ready=on_ready,
        snapshot_sink=lambda snapshot: seen.update(snapshot=snapshot),
        make_pool=lambda entries, _: FakePool(entries, [ScriptedEngine()]),
    )
    assert code == 0
    assert seen["status"]["address"] == seen["address"]
    assert seen["status"]["models"][0]["window"] == 4096


def test_a_state_folder_that_can_not_be_written_does_not_stop_the_server(home, models, caplog):
    (home / "state").write_text("a file where the folder should be")
    code = run_server(
        resolved(home),
        discover([models]),
        on_ready=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        make_pool=lambda entries, _: FakePool(entries, [ScriptedEngine()]),
    )
    assert code == 0
    assert "won't find this server" in caplog.text


@contextmanager
def listening(port=0):
    """Another process that listens on a port; gives the process and the port."""
    code = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "print(s.getsockname()[1], flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child, int(child.stdout.readline())
        child.stdin.close()


def refused(home, models, port):
    """The error of a server whose port is taken."""
    with pytest.raises(ServerError) as caught:
        run_server(
            resolved(home, **{"server.port": str(port)}),
            discover([models]),
            on_ready=print,
            make_pool=lambda entries, _: FakePool(entries, [ScriptedEngine()]),
        )
    return caught.value


def test_a_port_of_another_omlx_names_its_process(home, models):
    """L2: our own older process."""
    with listening() as (other, port):
        state = home / "state" / f"server-{port}.json"
        state.parent.mkdir()
        said = {"pid": other.pid, "address": f"http://127.0.0.1:{port}", "version": "0.0.1"}
        state.write_text(json.dumps(said))
        error = refused(home, models, port)
        assert f"omlx runs on port {port} already, as process {other.pid}" in error.message
        assert f"omlx stop --port {port}" in error.hint
        assert state.exists()  # it is not ours


def test_a_port_of_another_program_names_its_process(home, models):
    """L2: also where a state file says that it is a server that is gone."""
    with listening() as (other, port):
        state = home / "state" / f"server-{port}.json"
        state.parent.mkdir()
        said = {"pid": os.getppid(), "address": f"http://127.0.0.1:{port}", "version": "0.0.1"}
        state.write_text(json.dumps(said))
        error = refused(home, models, port)
        assert f"process {other.pid} (" in error.message
        assert f"listens on port {port}" in error.message
        assert "omlx runs" not in error.message


def test_a_holder_that_is_not_told():
    """L2: the system may not say whose a port is."""
    error = ServerError("Can't listen", hint="another port")
    assert explained(error, Path("/none"), 1, find=lambda port: Holder(5, "x")) is error
    error.__cause__ = OSError(errno.EADDRINUSE, "in use")
    assert explained(error, Path("/none"), 1, find=lambda port: None) is error
    found = explained(error, Path("/none"), 1, find=lambda port: Holder(5, ""))
    assert found.message == "Can't listen; process 5 listens on port 1"


def test_how_it_was_started_is_in_the_state(tmp_path):
    launched = Launched(("--port=1",), tmp_path, ("--api-key",))
    options = {"cache_dir": tmp_path, "started": datetime.now(UTC), "drain_s": 3.0}
    address = "http://127.0.0.1:8123"
    write_state(tmp_path, address, **options, log_path=tmp_path / "a", launched=launched)
    (found,) = running_servers(tmp_path)
    assert (found.launched, found.log_path, found.drain_s) == (launched, tmp_path / "a", 3.0)
    assert abs(found.started - time.time()) < 60
    assert found.process_started <= time.time()
    endless = Launched(("x" * 200_000,), tmp_path)  # rather no restart than no server
    write_state(tmp_path, address, **options, launched=endless)
    (found,) = running_servers(tmp_path)
    assert found.launched is None and found.pid == os.getpid()


def test_a_state_file_that_is_a_link_is_replaced(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    path = tmp_path / "server-8123.json"
    path.symlink_to(precious)
    write_state(tmp_path, "http://127.0.0.1:8123", cache_dir=tmp_path, started=datetime.now(UTC))
    assert precious.read_text() == "keep" and not path.is_symlink()


def test_state_files_of_others_stay(tmp_path):
    address = "http://127.0.0.1:8123"
    with removing_state(tmp_path):
        write_state(tmp_path, address, cache_dir=tmp_path, started=datetime.now(UTC))
        write_state(tmp_path, address, cache_dir=tmp_path, started=datetime.now(UTC))
        (tmp_path / "server-1.json").write_text('{"pid": 1}')
        (tmp_path / "server-2.json").write_text("half a fi")
        assert (tmp_path / "server-8123.json").exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["server-1.json", "server-2.json"]


@pytest.mark.parametrize("kind", ["file", "missing", "below a file"])
def test_l5_a_cache_folder_that_can_not_be_written_is_said(home, models, caplog, kind):
    (home / "file").write_text("")
    folder = home / {"file": "file", "missing": "new/folder", "below a file": "file/x"}[kind]
    code = run_server(
        resolved(home, **{"cache.dir": str(folder)}),
        discover([models]),
        on_ready=lambda _: os.kill(os.getpid(), signal.SIGTERM),
        make_pool=lambda entries, _: FakePool(entries, [ScriptedEngine()]),
    )
    assert code == 0
    said = f"nothing is stored on disk: {folder}: "
    assert (said in caplog.text) == (kind != "missing")
    assert (kind != "missing") or list(folder.iterdir()) == []


def test_l5_a_disk_that_takes_no_more_has_a_reason(home):
    """In a process that may write no more bytes to any file, as on a disk that is full."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from omlx.server.probe import write_fault\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "print(write_fault(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(home / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == os.strerror(errno.EFBIG)
    assert list((home / "cache").iterdir()) == []


def test_a_text_side_is_loaded_once_and_a_failure_is_tried_again():
    loads = []

    def read(path):
        loads.append(path)
        if len(loads) == 1:
            raise ModelError("no")
        return f"text of {path.name}"

    texts = TextModels(read)
    with pytest.raises(ModelError):
        texts.get(entry("a"))
    assert texts.get(entry("a")) is texts.get(entry("a"))
    assert texts.get(entry("b")) == "text of b"
    assert [path.name for path in loads] == ["a", "a", "b"]


def test_a_text_side_that_can_not_be_loaded_is_said_at_the_start_and_to_clients(caplog):
    def texts(_):
        raise ModelError("tokenizer.json is missing")

    with running(Plan(texts=texts)) as server:
        response = server.message()
        assert response.status_code == 500
        assert "tokenizer.json is missing" in response.text
    assert "can't be loaded: tokenizer.json is missing" in caplog.text
