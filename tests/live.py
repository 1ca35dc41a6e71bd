"""The real omlx as a process: started, asked over HTTP, stopped or killed."""

import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def command(*args: str, python: str = sys.executable) -> list[str]:
    return [python, "-m", "omlx", *args]


def run_omlx(
    *args: str, home: Path, timeout_s: float = 120, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    env = {**os.environ, "OMLX_HOME": str(home)}
    return subprocess.run(
        command(*args, python=python),
        cwd=REPOSITORY,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


class Live:
    """`omlx serve` on a free port."""

    def __init__(
        self, *args: str, home: Path, python: str = sys.executable, wait: bool = True
    ) -> None:
        self.home = home
        self.lines: list[str] = []
        self._seen: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            command("serve", "--port", "0", *args, python=python),
            cwd=REPOSITORY,
            env={**os.environ, "OMLX_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = self._find_port()
        if wait:
            self.wait_ready()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            self._seen.put(line)

    def _find_port(self) -> int:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                line = self._seen.get(timeout=0.5)
            except queue.Empty:
                if self.process.poll() is not None:
                    break
                continue
            match = re.search(r"serves at http://[^:]+:(\d+)", line)
            if match:
                return int(match[1])
        raise AssertionError("omlx serve did not start:\n" + "".join(self.lines))

    def wait_ready(self, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while self.get("/health")["status"] != "ready":
            assert self.process.poll() is None, "".join(self.lines)
            assert time.monotonic() < deadline, "the model did not load in time"
            time.sleep(0.05)

    def connection(self, timeout_s: float = 300) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def get(self, path: str) -> Any:
        with closing(self.connection()) as connection:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def post(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", **(headers or {})}
        with closing(self.connection()) as connection:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[tuple[float, str]]:
        """Lines of an SSE answer with the time since the request was sent."""
        headers = {"Content-Type": "application/json"}
        with closing(self.connection()) as connection:
            started = time.monotonic()
            connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            with response:
                for raw in response:
                    line = raw.decode().rstrip("\r\n")
                    if line:
                        yield time.monotonic() - started, line

    def status(self) -> Any:
        return self.get("/admin/api/status")

    def model_status(self) -> Any:
        return self.status()["models"][0]

    def is_written(self) -> bool:
        """Whether what was computed has reached the disk, as it does within seconds."""
        writes = self.model_status()["writes"]
        return not (writes["queued_bytes"] or writes["dirty_bytes"])

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = 30) -> int:
        self.process.send_signal(sig)
        code = self.process.wait(timeout_s)
        self._close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


def wait_until(is_true: Any, timeout_s: float = 30, poll_s: float = 0.05) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(poll_s)


def chat(
    model: str, text: str, *, max_tokens: int = 8, history: Sequence[Any] = ()
) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [*history, {"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
