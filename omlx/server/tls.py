"""The TLS side of a server: its certificate and key as a context, and what identifies it.

Knows nothing about sockets or HTTP.
"""

import hashlib
import ssl
from pathlib import Path

from omlx.errors import ServerError

_END = "-----END CERTIFICATE-----"
_BEGIN = "-----BEGIN CERTIFICATE-----"


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The context of a server with a certificate, TLS 1.2 or newer; None for one without.

    ServerError names the file that can't be used.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        given, missing = ("tls_cert", "tls_key") if cert is not None else ("tls_key", "tls_cert")
        raise ServerError(
            f"server.{given} is set and server.{missing} is not",
            hint=f"set server.{missing} to its PEM file, or neither",
        )
    fingerprint(cert)
    _read("tls_key", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key that needs a password would ask for it on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            message = f"The TLS key {key} is not that of the certificate {cert}"
        else:
            message = f"The TLS key {key} can't be used with the certificate {cert}: {reason}"
        raise ServerError(
            message, hint="server.tls_key must be a PEM file of a key without a password"
        ) from None
    return context


def fingerprint(cert: Path) -> str:
    """The SHA-256 of the certificate that a PEM file begins with, in hex; ServerError."""
    text = _read("tls_cert", cert)
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])
    except ValueError:
        raise ServerError(
            f"The TLS certificate {cert} is no PEM certificate",
            hint=f"server.tls_cert must be a file that has a line {_BEGIN}",
        ) from None
    return hashlib.sha256(der).hexdigest()


def _read(setting: str, path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(
            f"The TLS file {path} can't be read: {reason}", hint=f"server.{setting} names it"
        ) from None
