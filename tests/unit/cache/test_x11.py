"""X11: a file in place of a block is read as bytes or not at all; nothing in it is ever run."""

import pickle
from pathlib import Path

import pytest

from tests.fakes.cache import Rig

LONG = list(range(10, 32))


class Evil:
    """Leaves a file where somebody unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_the_pickle_would_work(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Evil(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("is_behind_a_header", [False, True])
def test_x11_a_pickle_in_place_of_a_block_is_a_miss(
    tmp_path: Path, protocol: int, is_behind_a_header: bool
) -> None:
    """X11"""
    rig = Rig()
    rig.compute(LONG)
    rig.restart()
    evil = pickle.dumps(Evil(tmp_path / "mark"), protocol)
    for path in rig.block_files():
        whole = bytes(rig.fs.content(path))
        start = 8 + int.from_bytes(whole[:8], "little") if is_behind_a_header else 0
        rig.fs.write(path, whole[:start] + (evil + whole[start:])[: len(whole) - start])
    rig.start()
    assert rig.look_up([*LONG, 99]).num_tokens == 0
    assert not (tmp_path / "mark").exists()
