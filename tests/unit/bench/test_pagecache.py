"""Files leave the page cache, or it is said that they did not."""

import errno
import os
from pathlib import Path

import pytest

from omlx.bench import pagecache
from omlx.bench.pagecache import cached_share, drop_files, drop_folder


def _write(folder: Path) -> list[Path]:
    (folder / "below").mkdir(parents=True)
    paths = [folder / "a", folder / "below" / "b"]
    for path in paths:
        path.write_bytes(b"x" * 100_000)
    (folder / "link").symlink_to(paths[0])
    return paths


def test_all_files_of_a_folder_are_dropped(tmp_path: Path) -> None:
    _write(tmp_path / "store")
    found = drop_folder(tmp_path / "store")
    assert (found.num_files, found.num_bytes) == (2, 200_000)
    # A file system in memory keeps them: then that is what is said.
    assert found.is_dropped == (found.cached_share in (0.0, None))
    assert found.is_dropped or found.reason


def test_a_file_that_was_just_read_is_cached(tmp_path: Path) -> None:
    paths = _write(tmp_path / "store")
    for path in paths:
        path.read_bytes()
    assert cached_share(paths) in (1.0, None)


def test_a_system_without_the_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "store")
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    found = drop_folder(tmp_path / "store")
    assert not found.is_dropped
    assert "no call that drops files" in found.reason


def test_files_that_stay_are_no_disk_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = _write(tmp_path / "store")
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None, raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(pagecache, "cached_share", lambda _: 0.5)
    found = drop_files(paths)
    assert (found.is_dropped, found.cached_share) == (False, 0.5)
    assert found.reason == "the file system keeps them in memory"


def test_where_it_can_not_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "no")

    paths = _write(tmp_path / "store")
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None, raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
    monkeypatch.setattr(os, "preadv", refuse)
    assert cached_share(paths) is None
    found = drop_files(paths)
    assert (found.is_dropped, found.cached_share) == (True, None)
    assert found.reason == "whether they left can't be asked here"


def test_files_that_vanish_and_no_files(tmp_path: Path) -> None:
    assert drop_files([tmp_path / "none"]).num_files == 0
    assert cached_share([tmp_path / "none"]) in (0.0, None)
    assert drop_folder(tmp_path).num_files == 0
