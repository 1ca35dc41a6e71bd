"""A small Hugging Face hub over HTTP: repositories in memory, and faults on demand."""

import hashlib
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

_PIECE_BYTES = 65_536
COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/models/([^/]+/[^/?]+)(?:/revision/([^?]+))?(?:\?.*)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def model_files(**more: bytes) -> dict[str, bytes]:
    """What a repository of a small model holds; the weights are of no tensors."""
    config = {"model_type": "llama", "max_position_embeddings": 512, "hidden_size": 8}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "README.md": b"# read me",
        "model.safetensors": b"\2\0\0\0\0\0\0\0{}" + bytes(range(256)) * 4000,
        **more,
    }


@dataclass
class FakeHub:
    """What the server answers; a test changes it while it runs."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: dict[tuple[str, str], str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str | None = None
    # Statuses that the next requests for a file (or "api") get instead of an answer.
    statuses: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    retry_after: str | None = None
    # After how many bytes of the body the next requests for a file are cut.
    cuts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    # What is sent or said in place of the truth.
    sent: dict[str, bytes] = field(default_factory=dict)
    said_sizes: dict[str, Any] = field(default_factory=dict)
    # Seconds before each 64 KiB of a file.
    pauses: dict[str, float] = field(default_factory=dict)
    ignores_ranges: bool = False
    wrong_ranges: bool = False
    api_body: bytes | None = None
    cdn: str | None = None
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    url: str = ""

    def asked_for(self, name: str) -> list[str | None]:
        """The ranges that were asked for of a file, None for a whole one."""
        return [got for path, got, _ in self.requests if path.endswith("/" + name)]

    def info(self, repo: str, commit: str) -> dict[str, Any]:
        siblings = []
        for name, data in self.repos[repo].items():
            size = self.said_sizes.get(name, len(data))
            one = {"rfilename": name, "size": size, "blobId": git_sha1(data)}
            if name.endswith(".safetensors"):
                sha256 = hashlib.sha256(data).hexdigest()
                one["lfs"] = {"size": size, "sha256": sha256, "pointerSize": 134}
            siblings.append(one)
        return {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}


def git_sha1(data: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(self.path)
        hub = self.hub
        hub.requests.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if path.startswith("/cdn/"):
            return self._send_file(path.removeprefix("/cdn/"))
        api, file = _API.fullmatch(path), _FILE.fullmatch(path)
        found = api or file
        if found is None:
            return self._error(404)
        name = file[3] if file else "api"
        if hub.statuses[name]:
            return self._error(hub.statuses[name].pop(0))
        repo, revision = found[1], found[2] or "main"
        if repo not in hub.repos:
            return self._error(401, "RepoNotFound")
        given = self.headers.get("Authorization")
        if hub.token is not None and given is not None and given != f"Bearer {hub.token}":
            return self._error(401, message="Invalid credentials in Authorization header")
        if repo in hub.gated and given != f"Bearer {hub.token}":
            return self._error(403, "GatedRepo")
        commit = hub.commits.get((repo, revision), COMMIT if revision in ("main", COMMIT) else "")
        if not commit and revision not in hub.commits.values():
            return self._error(404, "RevisionNotFound")
        if api:
            body = hub.api_body
            body = json.dumps(hub.info(repo, commit)).encode() if body is None else body
            return self._send(200, body, {"Content-Type": "application/json"})
        if name not in hub.repos[repo]:
            return self._error(404, "EntryNotFound")
        if hub.cdn is not None:
            return self._send(302, b"", {"Location": f"{hub.cdn}/cdn/{repo}/{name}"})
        return self._send_file(f"{repo}/{name}")

    def _send_file(self, path: str) -> None:
        owner, repo, name = path.split("/", 2)
        data = self.hub.sent.get(name, self.hub.repos[f"{owner}/{repo}"][name])
        asked = self.headers.get("Range")
        if asked is None or self.hub.ignores_ranges:
            return self._send(200, data, {}, name)
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        said = start + 1 if self.hub.wrong_ranges else start
        headers = {"Content-Range": f"bytes {said}-{len(data) - 1}/{len(data)}"}
        return self._send(206, data[start:], headers, name)

    def _error(self, status: int, code: str = "", message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        if message:
            headers["X-Error-Message"] = message
        if self.hub.retry_after is not None:
            headers["Retry-After"] = self.hub.retry_after
        self._send(status, b'{"error":"no"}', headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str], name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.hub.cuts[name]:
            self.wfile.write(body[: self.hub.cuts[name].pop(0)])
            self.wfile.flush()
            self.close_connection = True
            return
        pause_s = self.hub.pauses.get(name, 0.0)
        for at in range(0, len(body), _PIECE_BYTES) if pause_s else ():
            time.sleep(pause_s)
            try:
                self.wfile.write(body[at : at + _PIECE_BYTES])
            except OSError:
                self.close_connection = True
                return
        if not pause_s:
            self.wfile.write(body)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Let a hub answer until the block ends; its `url` is then set."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
