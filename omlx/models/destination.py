"""Where a pulled model goes: into a folder of models, or into the Hugging Face cache.

Knows nothing about hubs; each destination lets a model appear whole, by a rename.
"""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from omlx.errors import ModelError
from omlx.models.hub import RemoteFile, Repo
from omlx.models.locate import PULL_RECORD
from omlx.models.shelf import digests_of, record_of, size_of, write_json

Files = tuple[RemoteFile, ...]


class Destination(Protocol):
    """A place for the models of one kind of folder."""

    @property
    def root(self) -> Path:
        """The folder in which all of it lies."""
        ...

    def place(self, repo: Repo, commit: str) -> Path:
        """Where the model will be."""
        ...

    def earlier(self, repo: Repo) -> Path | None:
        """A version of it that is there and has files to take over."""
        ...

    def check(self, repo: Repo) -> None:
        """ModelError where something else is in the way."""
        ...

    def is_there(self, repo: Repo, commit: str, files: Files) -> bool:
        """Whether that commit is there, whole."""
        ...

    def appear(self, staging: Path, repo: Repo, commit: str, files: Files) -> None:
        """Let the model appear from its complete files (mutates both)."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder of models: OWNER/NAME below it."""

    root: Path

    def place(self, repo: Repo, commit: str) -> Path:
        """Where the model will be, whatever its commit."""
        return self.root / repo.name

    def earlier(self, repo: Repo) -> Path | None:
        """The version that an earlier pull has brought."""
        return self.root / repo.name

    def check(self, repo: Repo) -> None:
        """Stop before replacing a folder that no pull has made."""
        target = self.root / repo.name
        if target.is_symlink() or (target.exists() and not record_of(target)):
            raise ModelError(
                f"{target} is in the way: it did not come from a pull",
                hint="move it to another place, or pull into another folder with --model-dir",
            )

    def is_there(self, repo: Repo, commit: str, files: Files) -> bool:
        """Whether that commit is there; small files may have been edited since, weights not."""
        target = self.root / repo.name
        return record_of(target).get("commit") == commit and all(
            size_of(target / file.name) == file.size
            if file.name.endswith(".safetensors")
            else (target / file.name).exists()
            for file in files
        )

    def appear(self, staging: Path, repo: Repo, commit: str, files: Files) -> None:
        """Give the model its name; an earlier version goes only when that has worked."""
        target = self.root / repo.name
        record = {
            "repo": repo.name,
            "revision": repo.revision,
            "commit": commit,
            "files": {file.name: file.digest for file in files},
        }
        write_json(staging / PULL_RECORD, record)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            staging.rename(target)
            return
        old = staging.with_name(f"{staging.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        try:
            staging.rename(target)
        except BaseException:
            old.rename(target)
            raise
        _keep_the_users(old, target)
        shutil.rmtree(old, ignore_errors=True)


def _keep_the_users(old: Path, new: Path) -> None:
    """Move what no pull has brought, such as an omlx.toml, to the new version."""
    pulled = {PULL_RECORD, *(Path(name).parts[0] for name in digests_of(old))}
    for path in old.iterdir():
        if path.name not in pulled and not (new / path.name).exists():
            path.rename(new / path.name)


@dataclass(frozen=True, slots=True)
class HubCache:
    """The cache of Hugging Face's own tools, in their layout: blobs, snapshots, refs."""

    root: Path

    def place(self, repo: Repo, commit: str) -> Path:
        """Where the snapshot of a commit is."""
        return self._repo(repo) / "snapshots" / commit

    def earlier(self, repo: Repo) -> Path | None:
        """Nothing: blobs are shared anyway, once they are there."""
        return None

    def check(self, repo: Repo) -> None:
        """Nothing else has names of this form."""

    def is_there(self, repo: Repo, commit: str, files: Files) -> bool:
        """Whether the snapshot has all files in their sizes, and the revision means it."""
        snapshot = self.place(repo, commit)
        whole = all(size_of(snapshot / file.name) == file.size for file in files)
        if whole:
            self._name(repo, commit)
        return whole

    def appear(self, staging: Path, repo: Repo, commit: str, files: Files) -> None:
        """Move the files to their blobs, and then make the snapshot of links to them."""
        folder, snapshot = self._repo(repo), self.place(repo, commit)
        if nameless := next((file.name for file in files if not file.digest), None):
            raise ModelError(
                f"the hub gives no digest of {nameless}, by which the cache would name it",
                hint="pull it into a folder of models instead",
            )
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        snapshot.parent.mkdir(exist_ok=True)
        fresh = folder / f".{commit}.new"
        shutil.rmtree(fresh, ignore_errors=True)
        for file in files:
            blob = folder / "blobs" / file.digest
            if size_of(blob) != file.size:
                (staging / file.name).replace(blob)
            link = fresh / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            up = "../" * (2 + file.name.count("/"))
            link.symlink_to(f"{up}blobs/{file.digest}")
        if snapshot.exists():  # one that another tool has begun
            for link in [path for path in fresh.rglob("*") if path.is_symlink()]:
                named = snapshot / link.relative_to(fresh)
                named.parent.mkdir(parents=True, exist_ok=True)
                link.replace(named)
            shutil.rmtree(fresh)
        else:
            fresh.rename(snapshot)
        self._name(repo, commit)
        shutil.rmtree(staging, ignore_errors=True)

    def _repo(self, repo: Repo) -> Path:
        return self.root / f"models--{repo.name.replace('/', '--')}"

    def _name(self, repo: Repo, commit: str) -> None:
        """Let the revision mean the commit, as those tools note it."""
        if repo.revision == commit:
            return
        ref = self._repo(repo) / "refs" / repo.revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if ref.read_text("utf-8") == commit:
                return
        fresh = ref.with_name(f".{ref.name}.new")
        fresh.write_text(commit)
        fresh.replace(ref)
