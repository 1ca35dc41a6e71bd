"""Keys, and files that others could read.

Knows nothing about requests.
"""

import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from omlx.cli.checks.finding import Finding, Look, broken, ok, warning
from omlx.errors import OmlxError, SettingsError


def check_keys(look: Look) -> Iterator[Finding]:
    """The file of keys, and whether one is needed."""
    from omlx.server.auth import check_access
    from omlx.server.keyring import KeyRing
    from omlx.settings.keys import read_keys

    server, path = look.resolved.settings.server, look.resolved.keys_path
    try:
        keys = read_keys(path)
        ring = KeyRing(path, server.api_key)
        ring.load()
        check_access(server, ring)
    except SettingsError as error:
        fix = error.hint or f"correct or remove {path}"
        yield broken("keys", "; ".join(error.problems), fix)
        return
    except OmlxError as error:
        yield broken("keys", error.message, error.hint)
        return
    now = datetime.now(UTC)
    over = [key.name for key in keys if key.has_expired(now)]
    if over:
        yield warning(
            "keys", f"of no use any more: {', '.join(over)}", f"omlx key revoke {over[0]}"
        )
    num = len(keys) - len(over) + (server.api_key is not None)
    who = "everyone on this machine may ask" if not ring.has_any else f"{num} open the server"
    yield ok("keys", f"{server.host}: {who}")


def check_privacy(look: Look) -> Iterator[Finding]:
    """Settings with secrets, and folders with prompts, that other users can read."""
    config = look.home / "config.toml"
    origins, settings = look.resolved.origins, look.resolved.settings.server
    secrets = (
        ("server.api_key", settings.api_key), ("server.metrics_key", settings.metrics_key),
    )  # fmt: skip
    holds = any(v and origins[path].where.startswith(str(config)) for path, v in secrets)
    if holds and _is_open(config, 0o044):
        text = f"other users can read {config}, which holds a key"
        yield warning("privacy", text, f"chmod 600 '{config}'")
    for folder in (look.home / "state", look.resolved.cache_dir, look.home / "logs"):
        if _is_open(folder, 0o055):
            text = f"other users can look into {folder}, which holds prompts or their figures"
            yield warning("privacy", text, f"chmod 700 '{folder}'")


def _is_open(path: Path, bits: int) -> bool:
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & bits)
    except OSError:
        return False


CHECKS = (check_keys, check_privacy)
