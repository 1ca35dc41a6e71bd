"""Peers as processes: fake ones that start, fail, never come or won't go; none is left behind.

Knows nothing about comparisons.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from omlx.bench.client import Ask, ask
from omlx.bench.failure import BenchError
from omlx.bench.recipes import Recipe
from omlx.bench.sides import GivenSide, Model, PeerSide, with_venv

FAKE = Path(__file__).resolve().parents[2] / "fakes" / "peer.py"
MESSAGES = [{"role": "user", "content": "one two three four"}]

Make = Callable[..., PeerSide]


def recipe(*modes: str, **more: object) -> Recipe:
    made = Recipe(
        name="fake",
        title="a fake peer",
        command=("{python}", "-P", str(FAKE), "{port}", "{home}", *modes),
        ready="/health",
        request_model="bench",
        env={"HOME": "{home}"},
        ready_s=20,
        stop_s=5,
    )
    return replace(made, **more)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    sides: list[PeerSide] = []
    model = Model(tmp_path / "model", "model", 1000, tmp_path)

    def side(*modes: str, **more: object) -> PeerSide:
        sides.append(PeerSide(recipe(*modes, **more), model, None, 8))
        return sides[-1]

    yield side
    for one in sides:
        one.close()


def pid(side: PeerSide) -> int:
    assert side._program is not None
    return side._program.pid


def uncached(side: PeerSide) -> int | None:
    return ask(side.target(), Ask(MESSAGES, 2)).uncached_tokens


def test_it_starts_answers_and_is_gone_at_the_end(make: Make) -> None:
    side = make()
    assert side.start() > 0
    number = pid(side)
    home = side._home
    assert home is not None and home.is_dir()
    assert uncached(side) == 5 and uncached(side) == 1
    assert side.memory_bytes() > 1_000_000
    side.close()
    assert not psutil.pid_exists(number) and not home.exists()
    side.close()  # once more changes nothing


def test_a_restart_keeps_its_folder_and_a_start_does_not(make: Make) -> None:
    side = make("keeps")
    side.start()
    assert uncached(side) == 5
    first = pid(side)
    seconds, dropped = side.restart()
    assert seconds > 0 and dropped.num_files
    assert pid(side) != first and not psutil.pid_exists(first)
    assert uncached(side) == 1
    side.start()
    assert uncached(side) == 5, "a fresh process on an empty folder"


def test_what_it_kept_in_memory_only_is_gone_after_a_restart(make: Make) -> None:
    side = make()
    side.start()
    uncached(side)
    side.restart()
    assert uncached(side) == 5


def test_one_that_dies_at_once_tells_its_last_words(make: Make) -> None:
    side = make("dies")
    with pytest.raises(BenchError, match="the fake peer has no weights"):
        side.start()


def test_one_that_is_never_ready_is_ended(make: Make) -> None:
    side = make("never", ready_s=0.7)
    with pytest.raises(BenchError, match="not ready after"):
        side.start()
    assert not psutil.pid_exists(pid(side))


def test_one_that_will_not_go_is_killed(make: Make) -> None:
    side = make("stays", stop_s=0.3)
    side.start()
    first = pid(side)
    side.restart()
    assert not psutil.pid_exists(first)


def test_a_command_that_is_not_there(make: Make) -> None:
    side = make(command=("/nowhere/server", "{port}"))
    with pytest.raises(BenchError, match="cannot be started"):
        side.start()


def test_nothing_of_ours_reaches_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_HOME", "/ours")
    monkeypatch.setenv("PYTHONPATH", "/ours")
    side = make()
    side.start()
    env = psutil.Process(pid(side)).environ()
    assert "OMLX_HOME" not in env and "PYTHONPATH" not in env
    assert env["HOME"] == str(side._home)


def test_one_that_is_not_installed_is_said_before_anything_runs(make: Make, tmp_path: Path) -> None:
    side = replace(make(), venv=tmp_path / "peers" / "fake")
    with pytest.raises(BenchError) as caught:
        side.check()
    assert "scripts/peers fake" in caught.value.hint


def test_the_version_is_that_of_its_own_venv(make: Make, tmp_path: Path) -> None:
    info = tmp_path / "venv/lib/python3.11/site-packages/fake_peer-7.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-peer\nVersion: 7.1\n")
    side = replace(make(package="fake-peer"), venv=tmp_path / "venv")
    assert side.facts()["version"] == "7.1"


def test_where_a_recipe_is_installed(tmp_path: Path) -> None:
    assert with_venv(recipe(), tmp_path) is None
    assert with_venv(recipe(package="fake"), tmp_path) == tmp_path / "fake"
    assert with_venv(recipe(venv="~/x"), tmp_path) == Path.home() / "x"
    assert with_venv(recipe(command=("server", "{port}"), package="x"), tmp_path) is None


def test_a_server_that_runs_already_is_only_asked(make: Make) -> None:
    fake = make()
    fake.start()
    side = GivenSide("given", fake.target().url, "bench")
    assert side.start() is None and side.memory_bytes() is None
    assert ask(side.target(), Ask(MESSAGES, 2)).completion_tokens == 2
    with pytest.raises(BenchError, match="not the bench's to restart"):
        side.restart()
    side.close()
    assert psutil.pid_exists(pid(fake))
