"""The file of API keys: what is kept of a key, and which files are not believed."""

import os
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from omlx.errors import SettingsError
from omlx.settings.keys import (
    Limits,
    Scope,
    change_keys,
    new_key,
    read_keys,
    with_key,
    without_key,
    write_keys,
)

NOW = datetime(2026, 11, 30, 6, 30, 1, 5, UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "keys.toml"


def one(name: str = "one", **fields: object):
    return new_key(name, now=NOW, **fields)  # pyright: ignore


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_key_comes_back_as_it_was(path: Path) -> None:
    full, _ = one(
        "a.b-c_9", scope=Scope.ADMIN, limits=Limits(1, 10**9, 3), expires=NOW + timedelta(days=1)
    )
    plain, _ = one("plain")
    change_keys(path, with_key(full))
    change_keys(path, with_key(plain))
    assert read_keys(path) == (full, plain)
    assert plain.created == NOW.replace(microsecond=0)


def test_the_key_itself_is_nowhere(path: Path) -> None:
    """X4"""
    key, sent = one()
    change_keys(path, with_key(key))
    assert sent[len("omlx-") :][:6] == key.prefix
    rest = sent[len("omlx-") + 6 :]
    for shown in (path.read_text(), repr(key), str(key.shown(NOW))):
        assert sent not in shown and rest not in shown
        assert key.digest.hex() not in repr(key) + str(key.shown(NOW))


def test_keys_and_salts_are_never_the_same_twice() -> None:
    made = [one() for _ in range(100)]
    assert len({sent for _, sent in made}) == len({key.salt for key, _ in made}) == 100
    assert all(len(sent) == len("omlx-") + 43 for _, sent in made)
    key, sent = made[0]
    assert replace(key, salt=made[1][0].salt).is_of(sent.encode()) is False


def test_only_the_key_is_the_key() -> None:
    key, sent = one()
    assert key.is_of(sent.encode())
    for other in (sent[:-1], sent + "A", sent.upper(), sent[5:], "", key.prefix):
        assert not key.is_of(other.encode())


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "a" * 65, 'a"', "ä", "../a", "a\n"])
def test_bad_names(name: str, path: Path) -> None:
    with pytest.raises(ValueError, match="name"):
        one(name)


def test_a_name_is_taken_once_and_removed_once(path: Path) -> None:
    change_keys(path, with_key(one()[0]))
    with pytest.raises(ValueError, match="already"):
        change_keys(path, with_key(one()[0]))
    change_keys(path, without_key("one"))
    with pytest.raises(KeyError):
        change_keys(path, without_key("one"))
    assert read_keys(path) == ()


def test_changes_at_the_same_time_are_all_made(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: change_keys(path, with_key(one(f"k{i}")[0])), range(24)))
    assert {key.name for key in read_keys(path)} == {f"k{i}" for i in range(24)}


def test_the_file_is_for_its_owner_only(path: Path) -> None:
    """X10: whatever the umask is."""
    before = os.umask(0)
    try:
        change_keys(path, with_key(one()[0]))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["keys.toml"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666])
def test_a_file_that_others_can_read_or_change_is_not_believed(path: Path, mode: int) -> None:
    change_keys(path, with_key(one()[0]))
    path.chmod(mode)
    with pytest.raises(SettingsError, match="other users") as caught:
        read_keys(path)
    assert "chmod 600" in caught.value.hint


def test_a_missing_file_has_no_keys(path: Path) -> None:
    assert read_keys(path) == ()


GOOD = f'salt = "{"00" * 16}"\nhash = "{"00" * 32}"\nprefix = "abcdef"\n'


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        "x = 1",
        "key = 1",
        "[key]\na = 1",
        "[key.a]",
        f'[key."a b"]\n{GOOD}',
        f"[key.a]\n{GOOD}more = 1",
        f'[key.a]\n{GOOD}scope = "owner"',
        f"[key.a]\n{GOOD}scope = 1",
        f"[key.a]\n{GOOD}requests_per_minute = 0",
        f"[key.a]\n{GOOD}requests_per_minute = true",
        f'[key.a]\n{GOOD}tokens_per_minute = "9"',
        f"[key.a]\n{GOOD}expires = 2026-01-01",
        '[key.a]\nprefix = "x"\nsalt = "00"\nhash = "00"',
        '[key.a]\nprefix = "x"\nsalt = "zz"\nhash = "00"',
        "[key.a]\n[key.a]",
        "\udcff",
    ],
)
def test_a_file_that_is_wrong_says_where(path: Path, text: str) -> None:
    file = written(path, "")
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError, match="keys.toml"):
        read_keys(file)


def test_a_file_that_is_no_file(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(SettingsError):
        read_keys(path)


def test_times_without_a_zone_are_utc(path: Path) -> None:
    file = written(path, f"[key.a]\n{GOOD}expires = 2026-11-30T06:30:00\n")
    (key,) = read_keys(file)
    assert key.scope is Scope.INFERENCE
    assert key.has_expired(NOW)
    assert not key.has_expired(NOW - timedelta(seconds=2))


def test_a_write_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = one()
    change_keys(path, with_key(key))

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        write_keys(path, [])
    assert read_keys(path) == (key,)
    assert [file.name for file in path.parent.iterdir()] == ["keys.toml"]
    assert tomllib.loads(path.read_text()).keys() == {"key"}
