"""A proxy on a free port that keeps what goes through it, for a server on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PATIENCE_S = 60
_OWN_HEADERS = ("connection", "keep-alive", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the response to it, with the names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    request: bytes
    status: int
    content_type: str
    body: bytes


@dataclass
class Recording:
    """The exchanges so far, in the order in which they ended."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def recording(port: int) -> Iterator[Recording]:
    """Pass requests on to a port of this machine until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            request = self.rfile.read(int(self.headers.get("content-length") or 0))
            upstream = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
            upstream.request(self.command, self.path, request or None, dict(self.headers.items()))
            response = upstream.getresponse()
            body = self._passed_on(response)
            upstream.close()
            headers = {name.lower(): value for name, value in self.headers.items()}
            kept.exchanges.append(
                Exchange(
                    self.command,
                    self.path,
                    headers,
                    request,
                    response.status,
                    response.headers.get("content-type", ""),
                    body,
                )
            )

        def _passed_on(self, response: HTTPResponse) -> bytes:
            self.send_response_only(response.status)
            for name, value in response.headers.items():
                if name.lower() not in _OWN_HEADERS:
                    self.send_header(name, value)
            is_chunked = response.headers.get("content-length") is None
            if is_chunked:
                self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            body = b""
            while piece := response.read1():
                body += piece
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            if is_chunked:
                self.wfile.write(b"0\r\n\r\n")
            return body

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept = Recording(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, name="proxy")
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
