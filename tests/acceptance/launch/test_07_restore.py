"""Point 7: --write and then --restore leave every file of the user's byte for byte as it was."""

import json
import os
import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from omlx.cli.main import run
from tests.acceptance.conftest import Figure
from tests.acceptance.launch.written import WRITTEN, files_of, own_text, snapshot
from tests.fakes.model_folder import write_model_folder
from tests.live import run_omlx

Launch = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's home, with a model of 131,072 positions in a folder of omlx."""
    home = tmp_path / "home"
    home.mkdir()
    folder = write_model_folder(tmp_path / "omlx" / "models", "coder")
    config = {"model_type": "llama", "max_position_embeddings": 131072}
    (folder / "config.json").write_text(json.dumps(config))
    for name in [name for name in os.environ if name.endswith(("_HOME", "_DIR", "_API_KEY"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OMLX_HOME", str(tmp_path / "omlx"))
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o022)
    yield home
    os.umask(umask)


@pytest.fixture
def launch(home: Path, capsys: pytest.CaptureFixture[str]) -> Launch:
    """Calls omlx launch: its exit code, stdout and stderr."""

    def call(*args: str) -> tuple[int, str, str]:
        code = run(["launch", *args])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def put(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(mode)


def there_and_back(launch: Launch, name: str, root: Path) -> int:
    """Write and restore; the number of files that were changed in between."""
    before = snapshot(root)
    code, out, err = launch(name, "--write")
    assert code == 0, err
    between = snapshot(root)
    changed = {
        place
        for place in {*before, *between}
        if before.get(place) != between.get(place) and between[place].kind == "file"
    }
    assert changed and "coder" in out, "the change was shown"
    assert launch(name, "--write")[0] == 0, "a second time changes nothing"
    assert snapshot(root) == between
    code, out, err = launch(name, "--restore")
    assert code == 0, err
    assert snapshot(root) == before
    code, _, err = launch(name, "--restore")
    assert code == 1 and "nothing was written" in err
    return len(changed)


SHAPES = {
    "missing": None,
    "empty": "",
    "with comments": str,
    "with CRLF": lambda text: text.replace("\n", "\r\n"),
    "without a newline at the end": lambda text: text.rstrip("\n"),
    "with tabs": lambda text: text.replace("  ", "\t") if text.startswith("{") else text,
    "on one line": lambda text: '{"a": {"b": [1, 2]}, "c": "d"}' if text.startswith("{") else text,
    "with a byte order mark": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", WRITTEN)
def test_every_client_and_shape(
    name: str, shape: str, home: Path, launch: Launch, figure: Figure
) -> None:
    make = SHAPES[shape]
    paths = files_of(name, home)
    if make == "":
        for path in paths:
            put(path, "")
    elif make is not None:
        for path in paths:
            put(path, make(own_text(path)), mode=0o640)
    num = there_and_back(launch, name, home)
    assert num == len(paths)
    figure(f"restore: {name}, files {shape}: {num} changed and byte for byte as before")


REPLACED = {"other", "other/one", "gpt"}  # the models that the files of this test name


def words(text: str) -> list[str]:
    return re.findall(r"[^\s,]+", text)


@pytest.mark.parametrize("name", WRITTEN)
def test_only_what_is_ours_differs(name: str, home: Path, launch: Launch) -> None:
    """Every word of the user's file is still there in its order, but for the model it named."""
    paths = files_of(name, home)
    for path in paths:
        put(path, own_text(path).replace("\n", "\r\n"))
    assert launch(name, "--write")[0] == 0
    for path in paths:
        raw = path.read_bytes()
        assert raw.count(b"\n") == raw.count(b"\r\n"), "line ends are as they were"
        old, new = words(own_text(path)), words(raw.decode())
        lost: list[str] = []
        for kind, start, end, _, _ in SequenceMatcher(None, old, new, False).get_opcodes():
            lost += [] if kind in ("equal", "insert") else old[start:end]
        assert {word.strip("\"'") for word in lost} <= REPLACED
        assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", WRITTEN)
def test_links_are_followed_and_stay(name: str, home: Path, launch: Launch) -> None:
    for idx, path in enumerate(files_of(name, home)):
        real = home / "dotfiles" / f"{idx}-{path.name}"
        put(real, own_text(path), mode=0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(real, path.parent))
    there_and_back(launch, name, home)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_to_nothing(name: str, home: Path, launch: Launch) -> None:
    for idx, path in enumerate(files_of(name, home)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(home / "dotfiles" / f"{idx}")
    there_and_back(launch, name, home)


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("name", WRITTEN)
def test_read_only_is_an_error_and_nothing_is_changed(
    name: str, what: str, home: Path, launch: Launch
) -> None:
    """The last file is read-only: the first ones must not be changed either."""
    paths = files_of(name, home)
    for path in paths:
        put(path, own_text(path))
    last = paths[-1]
    (last if what == "file" else last.parent).chmod(0o444 if what == "file" else 0o555)
    before = snapshot(home)
    code, _, err = launch(name, "--write")
    assert code == 1 and "read-only" in err and "Traceback" not in err
    assert snapshot(home) == before
    assert launch(name, "--restore")[0] == 1, "there is nothing to restore"
    (last if what == "file" else last.parent).chmod(0o755)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_cannot_be_read_is_an_error(name: str, home: Path, launch: Launch) -> None:
    path = files_of(name, home)[0]
    for text in ("{[(\x00", "a: [1\nb = }", "\xff\xfe\xff"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
        before = snapshot(home)
        code, _, err = launch(name, "--write")
        assert code == 1 and str(path) in err and "Traceback" not in err, text
        assert snapshot(home) == before
    path.unlink()
    path.mkdir()
    code, _, err = launch(name, "--write")
    assert code == 1 and "is no file" in err


@pytest.mark.parametrize("name", WRITTEN)
def test_a_change_since_is_not_lost(name: str, home: Path, launch: Launch) -> None:
    paths = files_of(name, home)
    for path in paths:
        put(path, own_text(path))
    before = snapshot(home)
    assert launch(name, "--write")[0] == 0
    paths[0].write_bytes(paths[0].read_bytes() + b"\n\n")
    between = snapshot(home)
    code, _, err = launch(name, "--restore")
    assert code == 1 and "was changed since" in err and "--force" in err
    assert snapshot(home) == between, "nothing was changed"
    changed = paths[0].read_bytes()
    assert launch(name, "--restore", "--force")[0] == 0
    assert snapshot(home) == before
    replaced = home.parent / "omlx" / "state" / "launch" / "replaced" / name
    assert [path.read_bytes() for path in replaced.iterdir()] == [changed]


def test_the_binary(home: Path, tmp_path: Path, figure: Figure) -> None:
    """The real command, one client, from nothing and back."""
    before = snapshot(home)
    for args in (("--write",), ("--restore",)):
        done = run_omlx("launch", "codex", *args, home=tmp_path / "omlx")
        assert done.returncode == 0, done.stderr
    assert snapshot(home) == before
    figure("restore: the binary writes ~/.codex/config.toml where there was none, and removes it")
