"""Memory, open files, and the port of the server.

Knows nothing about disks.
"""

import errno
import resource
import socket
from collections.abc import Iterator

from omlx.cli.checks.finding import Finding, Look, broken, ok, warning
from omlx.errors import OmlxError
from omlx.units import format_size

_LEAST_CEILING = 4 * 10**9
_LEAST_FILES = 1024
_FILES = 8192


def check_memory(look: Look) -> Iterator[Finding]:
    """What models and caches may take, and which models that is too little for."""
    from omlx.cli.found import discover_models, searched
    from omlx.models.fits import split

    resolved, machine = look.resolved, look.resolved.machine
    ceiling = resolved.ceiling_bytes
    if machine is None or ceiling is None:
        return
    limit = resolved.settings.engine.memory_limit
    text = (
        f"{format_size(ceiling)} of {format_size(machine.memory_bytes)} are for models and caches"
    )
    if ceiling < _LEAST_CEILING:
        yield warning(
            "memory", f"{text} (engine.memory_limit {limit}): enough for small models only",
            "omlx config set engine.memory_limit aggressive, or a smaller quantization",
        )  # fmt: skip
    else:
        yield ok("memory", f"{text} (engine.memory_limit {limit})")
    try:
        models = discover_models(resolved).models
    except OmlxError as error:
        yield broken("models", error.message, "omlx config set models.dir names another folder")
        return
    fitting, refused = split(models, ceiling)
    if not models:
        yield warning("models", f"no models in {searched(resolved)}", "omlx model pull demo")
    elif not fitting:
        yield broken("models", "; ".join(refused.values()), "omlx quantize makes smaller ones")
    else:
        yield ok("models", f"{len(fitting)} can be served")
        for reason in refused.values():
            yield warning("models", reason, "omlx quantize makes a smaller one")


def check_files(look: Look) -> Iterator[Finding]:
    """How many files and sockets a server may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} files may be open at once"
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        most = "no limit" if hard == resource.RLIM_INFINITY else hard
        yield warning(
            "files", f"{text}: streams and blocks may need more ({most} are allowed)",
            f"ulimit -n {_FILES} before omlx serve; omlx service install sets it",
        )  # fmt: skip
    else:
        yield ok("files", text)


def check_port(look: Look) -> Iterator[Finding]:
    """Whether the server can listen where the settings say, or does."""
    from omlx.launch.background import find
    from omlx.server.holder import find_holder

    server = look.resolved.settings.server
    if server.unix_socket is not None or server.port == 0:
        return
    where = f"{server.host}:{server.port}"
    if any(one.port == server.port for one in find(look.resolved.state_dir).servers):
        yield ok("port", f"omlx serves at {where}")
        return
    fault = _bind_fault(server.host, server.port)
    if fault is None:
        yield ok("port", f"{where} is free")
        return
    holder = find_holder(server.port) if fault.errno == errno.EADDRINUSE else None
    by = f" by process {holder.pid} ({holder.name})" if holder is not None else ""
    what = f"taken{by}" if fault.errno == errno.EADDRINUSE else (fault.strerror or str(fault))
    yield broken(
        "port", f"omlx can't listen on {where}: {what}",
        f"end that process, or omlx config set server.port {server.port + 1}",
    )  # fmt: skip


def _bind_fault(host: str, port: int) -> OSError | None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(1)
    except OSError as error:
        return error
    return None


CHECKS = (check_memory, check_files, check_port)
