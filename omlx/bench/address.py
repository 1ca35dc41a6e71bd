"""Addresses of OpenAI-compatible servers: a connection to one, and what its errors mean.

Knows nothing about requests.
"""

import http.client
import ssl
from urllib.parse import urlsplit

from omlx.bench.failure import BenchError

CONNECT_S = 10.0


def connection_to(url: str) -> tuple[http.client.HTTPConnection, str]:
    """A connection that is not open yet, and the path before that of the request."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        raise BenchError(
            f"{url!r} is not the address of a server", hint="as in http://127.0.0.1:8000/v1"
        )
    base = parts.path.rstrip("/") or "/v1"
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S), base
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context), base


def hint_of(status: int) -> str:
    """What to do about a status of HTTP; empty where nobody knows."""
    match status:
        case 401 | 403:
            return "--key, or OMLX_SERVER_API_KEY, gives the server's API key"
        case 404:
            return "--model names a model that the server has"
        case 429 | 503:
            return "the server is busy: let fewer requests run at once, or raise its limits"
        case _:
            return ""


def reason_of(error: Exception) -> str:
    """What an error of the network says, or its name."""
    return str(error) or type(error).__name__
