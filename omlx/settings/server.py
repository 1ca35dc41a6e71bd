"""The settings of the HTTP server: where it listens, who may ask, how much.

Knows nothing about files, variables or the command line, or how a server keeps to them.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from omlx.settings.option import Option, Unit


@dataclass(frozen=True, slots=True)
class Server:
    """The HTTP server."""

    host: Annotated[
        str, Option("Address to listen on; one that is not loopback needs an API key.")
    ] = "127.0.0.1"
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.", low=0, high=65535)] = 8000
    api_key: Annotated[
        str | None,
        Option(
            "Key that clients must send; other users of the machine can see a flag, "
            "so prefer the variable or a file.",
            secret=True,
        ),
    ] = field(default=None, repr=False)
    metrics_key: Annotated[
        str | None,
        Option(
            "Key that opens /metrics and nothing else, beside the API keys; /metrics then always "
            "needs one.",
            secret=True,
        ),
    ] = field(default=None, repr=False)
    default_model: Annotated[
        str | None, Option("Model that answers requests for an unknown model id.")
    ] = None
    max_body: Annotated[
        int, Option("Largest request body.", unit=Unit.SIZE, low=1000, high=10**12)
    ] = 32_000_000
    drain_timeout: Annotated[
        float,
        Option(
            "How long a stop may take: half for running requests, the rest for writing blocks.",
            unit=Unit.DURATION,
            high=86400,
        ),
    ] = 10.0
    keepalive: Annotated[
        float,
        Option(
            "Silence on a stream after which a keep-alive is sent.",
            unit=Unit.DURATION,
            low=0.1,
            high=3600,
        ),
    ] = 10.0
    skip_api_key_verification: Annotated[
        bool,
        Option("Ask nobody for a key, though there are some; on a loopback address only."),
    ] = False
    allow_unauthenticated_inference: Annotated[
        bool,
        Option("Let everyone who can connect use the models; all else still needs a key."),
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option("Name or address of this server that a Host header may have; loopback always may."),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Option("Origin of web pages that may ask this server, such as https://app.example."),
    ] = ()
    tls_cert: Annotated[
        Path | None,
        Option("PEM file of the certificate and its chain; clients then need https.", is_file=True),
    ] = None
    tls_key: Annotated[
        Path | None, Option("PEM file of the certificate's private key.", is_file=True)
    ] = None
    unix_socket: Annotated[
        Path | None,
        Option(
            "Unix socket to listen on instead of host and port; only this user can connect.",
            is_file=True,
        ),
    ] = None
