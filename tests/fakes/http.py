"""An HTTP server on a free port that answers with fixed JSON, for tests of clients.

It knows nothing about what the answers mean.
"""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class JsonServer:
    """Serves while it is entered; `raw` replaces the answers with bytes, whatever they are."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers
        self.api_key: str | None = None
        self.raw: bytes | None = None
        self.status = 200
        self.statuses: dict[str, int] = {}  # of single paths
        self.posted: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_address[1]

    @property
    def address(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                fake.posted.append(self.path)
                self.do_GET()

            def do_GET(self) -> None:
                key = self.headers.get("Authorization")
                allowed = fake.api_key is None or key == f"Bearer {fake.api_key}"
                known = self.path in fake.answers
                missing = {"error": {"message": "no such thing"}}
                body = json.dumps(fake.answers.get(self.path, missing)).encode()
                status = fake.statuses.get(self.path, fake.status)
                self.send_response(401 if not allowed else status if known else 404)
                self.end_headers()
                self.wfile.write(body if fake.raw is None else fake.raw)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
