"""The files of the admin page, read once, and the headers that browsers are to keep to.

Knows nothing about routes. The page needs no other host, and no script or style outside its files.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).resolve().parent / "static"
INDEX = "index.html"
_TYPES = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".json": "application/json",
        ".svg": "image/svg+xml",
    }
)
# Trusted types are what lets a browser itself refuse every way from text to markup or script.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
PAGE_HEADERS: Sequence[tuple[str, str]] = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-cache"),  # kept, but asked for again: by its ETag
    ("content-security-policy", _POLICY),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page as it is sent."""

    data: bytes
    content_type: str
    etag: str


def read_assets(folder: Path = FOLDER) -> Mapping[str, Asset]:
    """Every file by its place below the folder, with / between names; OSError."""
    found: dict[str, Asset] = {}
    for path in sorted(folder.rglob("*")):
        content_type = _TYPES.get(path.suffix)
        if content_type is not None and path.is_file():
            data = path.read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
            found[path.relative_to(folder).as_posix()] = Asset(data, content_type, etag)
    return MappingProxyType(found)
