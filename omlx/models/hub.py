"""Asks a Hugging Face hub what a repository holds, and brings its files however often that breaks.

Knows nothing about models or where files are kept in the end.
"""

import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    get_session,
    hf_raise_for_status,
)

from omlx import __version__
from omlx.errors import ModelError

# The HTTP library under the hub's has changed its name before; the hub's own errors derive from it.
_TransportError: Any = HfHubHTTPError.__mro__[1]
_session: Any = get_session
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_MAX_TRIES = 5
_MAX_WAIT_S = 30.0
_TIMEOUT_S = 30.0
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_TOKEN_HINT = "set HF_TOKEN to a token that may read it (hf auth login keeps one)"


@dataclass(frozen=True, slots=True)
class Repo:
    """A repository of a hub at a revision: a branch, a tag or a commit."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository; `sha256` where it is kept as a large file, else git's `sha1`."""

    name: str
    size: int
    sha256: str | None
    sha1: str | None

    @property
    def digest(self) -> str:
        """What says that its content is the same."""
        return self.sha256 or self.sha1 or ""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True)
class _End:
    """How a request for bytes ended, and how long the hub asks to wait after it."""

    reason: str
    wait_s: float = 0.0


class Hub:
    """One hub, by default the one that HF_ENDPOINT names."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        named = endpoint or env.get("HF_ENDPOINT") or "https://huggingface.co"
        self.endpoint = named.rstrip("/")
        self._sleep = sleep

    def listing(self, repo: Repo) -> Listing:
        """The commit that a revision means, and its files with sizes; ModelError."""
        api = huggingface_hub.HfApi(
            endpoint=self.endpoint, library_name="omlx", library_version=__version__
        )
        with self._explaining(repo):
            info = self._patiently(
                lambda: api.model_info(
                    repo.name, revision=repo.revision, files_metadata=True, timeout=_TIMEOUT_S
                )
            )
        files: list[RemoteFile] = []
        for one in info.siblings or ():
            size = one.lfs.size if one.lfs else one.size
            if type(size) is not int or size < 0:
                raise ModelError(f"{self.endpoint} does not say how large {one.rfilename!r} is")
            files.append(
                RemoteFile(one.rfilename, size, one.lfs.sha256 if one.lfs else None, one.blob_id)
            )
        if not isinstance(info.sha, str) or not re.fullmatch(r"[0-9a-f]{7,64}", info.sha):
            raise ModelError(f"{self.endpoint} does not say which commit {repo} is")
        return Listing(info.sha, tuple(files))

    def fetch(
        self,
        repo: Repo,
        commit: str,
        file: RemoteFile,
        part: Path,
        on_bytes: Callable[[int], None],
    ) -> None:
        """Bring a file into `part`, going on where that ends; `on_bytes` gets how much is there.

        ModelError and OSError leave what has come; a broken connection is tried again at once, and
        given up where five tries in a row bring nothing.
        """
        url = huggingface_hub.hf_hub_url(
            repo.name, file.name, revision=commit, endpoint=self.endpoint
        )
        tries = 0
        with self._explaining(repo), _open_at_end(part, file.size) as out:
            while out.tell() < file.size:
                before = out.tell()
                end = self._fetch_more(url, file, out, on_bytes)
                tries = 0 if out.tell() > before else tries + 1
                if out.tell() < file.size and tries >= _MAX_TRIES:
                    raise ModelError(
                        f"{self.endpoint} gave nothing {tries} times in a row at byte "
                        f"{out.tell():,} of {file.size:,} of {file.name}: {end.reason}",
                        hint="what was fetched is kept: try again later, it goes on from there",
                    )
                if tries:
                    self._sleep(end.wait_s or min(2.0**tries, _MAX_WAIT_S))
            out.flush()
            os.fsync(out.fileno())

    def _fetch_more(
        self, url: str, file: RemoteFile, out: BinaryIO, on_bytes: Callable[[int], None]
    ) -> "_End":
        """One request for the rest of a file; how that ended."""
        # Bytes as they are: offsets into something that is compressed on the way mean nothing.
        headers = {**self._headers(), "Accept-Encoding": "identity"}
        if start := out.tell():
            headers["Range"] = f"bytes={start}-"
        try:
            with _session().stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as response:
                if response.status_code in _TRY_AGAIN:
                    return _End(f"it answers with {response.status_code}", _wait_s(response))
                if response.status_code == 416:
                    _cut(out, 0)
                    raise ModelError(
                        f"{file.name} is shorter at {self.endpoint} than the {file.size:,} bytes "
                        "that it says",
                        hint="try again; if it stays so, the repository is broken",
                    )
                hf_raise_for_status(response)
                _place(response, file, out)
                for piece in response.iter_bytes():
                    if out.tell() + len(piece) > file.size:
                        _cut(out, 0)
                        raise ModelError(
                            f"{self.endpoint} sends more than the {file.size:,} bytes that it "
                            f"says {file.name} has",
                            hint="try again; if it stays so, the repository is broken",
                        )
                    out.write(piece)
                    on_bytes(out.tell())
        except _TransportError as error:
            if isinstance(error, HfHubHTTPError):
                raise
            return _End(str(error) or type(error).__name__)
        return _End("the answer was too short")

    def _headers(self) -> dict[str, str]:
        return build_hf_headers(library_name="omlx", library_version=__version__)

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        """The answer to a question that is put again while the hub is busy or out of reach."""
        for tries in range(1, _MAX_TRIES + 1):
            try:
                return ask()
            except _TransportError as error:
                status = _status(error)
                is_final = status is not None and status not in _TRY_AGAIN
                if is_final or tries == _MAX_TRIES:
                    raise
                wait_s = _wait_s(error.response) if isinstance(error, HfHubHTTPError) else 0.0
                self._sleep(wait_s or min(2.0**tries, _MAX_WAIT_S))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _explaining(self, repo: Repo) -> Generator[None]:
        try:
            yield
        except OfflineModeIsEnabled:
            raise ModelError(
                "HF_HUB_OFFLINE forbids to ask the hub", hint="unset it to pull models"
            ) from None
        except _TransportError as error:
            raise self._explained(error, repo) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"the answer of {self.endpoint} about {repo} makes no sense: {error!r}",
                hint="is HF_ENDPOINT the address of a Hugging Face hub?",
            ) from None

    def _explained(self, error: Any, repo: Repo) -> ModelError:
        status = _status(error)
        match error:
            case GatedRepoError():
                return ModelError(
                    f"{repo.name} is gated: its owner wants terms to be accepted first",
                    hint=f"accept them at {self.endpoint}/{repo.name}, then {_TOKEN_HINT}",
                )
            case RevisionNotFoundError():
                return ModelError(
                    f"{repo.name} has no revision {repo.revision!r}",
                    hint=f"{self.endpoint}/{repo.name}/commits/main lists what it has",
                )
            case RepositoryNotFoundError():
                return ModelError(
                    f"there is no model {repo.name} at {self.endpoint}, or it is private",
                    hint=f"check its name; if it is private, {_TOKEN_HINT}",
                )
            case HfHubHTTPError() if status in (401, 403):
                return ModelError(
                    f"{self.endpoint} refuses to give {repo.name} ({status})", hint=_TOKEN_HINT
                )
            case HfHubHTTPError():
                return ModelError(
                    f"{self.endpoint} answers with {status} when asked about {repo}",
                    hint="try again later: what was fetched is kept",
                )
            case _:
                reason = str(error) or type(error).__name__
                return ModelError(
                    f"{self.endpoint} can't be reached: {reason}",
                    hint="check the network, a proxy, and HF_ENDPOINT",
                )


def _place(response: Any, file: RemoteFile, out: BinaryIO) -> None:
    """Go to where an answer's bytes belong: its range, or the beginning if it has the whole."""
    start = 0
    if response.status_code == 206:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        is_ours = found and int(found[1]) == out.tell() and found[3] in ("*", str(file.size))
        start = out.tell() if is_ours else -1
    if start < 0:
        _cut(out, 0)
        raise ModelError(
            f"the hub gives another part of {file.name} than was asked for",
            hint="try again: it begins anew",
        )
    _cut(out, start)


def _open_at_end(part: Path, size: int) -> BinaryIO:
    """The file to go on with, anew if it is longer than it can be."""
    part.touch(mode=0o644)
    out = part.open("r+b")
    if out.seek(0, os.SEEK_END) > size:
        _cut(out, 0)
    return out


def _cut(out: BinaryIO, size: int) -> None:
    out.truncate(size)
    out.seek(size)


def _status(error: Any) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _wait_s(response: Any) -> float:
    """Seconds that an answer asks to wait, 0 where it doesn't say."""
    try:
        return min(max(float(response.headers.get("Retry-After", 0)), 0.0), _MAX_WAIT_S)
    except ValueError:
        return 0.0
