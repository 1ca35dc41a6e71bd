"""A log that several processes write to, and that is rotated."""

import fcntl
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx import log
from omlx.log import LogFile, Output


@pytest.fixture
def fd() -> Iterator[int]:
    """An output of its own, in the place of stderr."""
    handle = os.open(os.devnull, os.O_WRONLY)
    yield handle
    os.close(handle)


@pytest.fixture
def second() -> Iterator[int]:
    handle = os.open(os.devnull, os.O_WRONLY)
    yield handle
    os.close(handle)


def write(output: Output, fd: int, text: str) -> None:
    output.settle()
    os.write(fd, text.encode())


def test_a_full_log_is_moved_and_so_many_are_kept(tmp_path: Path, fd: int) -> None:
    file = LogFile(tmp_path / "logs" / "a.log", max_bytes=10, keep=2)
    output = Output(file, fd)
    output.take()
    for number in range(5):
        write(output, fd, f"line {number} ......\n")
    assert [path.name for path in sorted(file.path.parent.iterdir())] == [
        "a.log", "a.log.1", "a.log.2",
    ]  # fmt: skip
    assert file.path.read_text().startswith("line 4")
    assert file.old(1).read_text().startswith("line 3")
    assert file.old(2).read_text().startswith("line 2")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_another_process_goes_on_in_the_new_file(tmp_path: Path, fd: int, second: int) -> None:
    file = LogFile(tmp_path / "a.log", max_bytes=10, keep=3)
    one, other = Output(file, fd), Output(file, second)
    one.take()
    other.take()
    write(one, fd, "one, long enough\n")
    write(one, fd, "one again\n")  # in a new file
    os.write(second, b"a library of the other\n")  # does not look: nothing is lost
    write(other, second, "other\n")
    assert file.old(1).read_text() == "one, long enough\na library of the other\n"
    assert file.path.read_text() == "one again\nother\n"
    assert not file.old(2).exists()


def test_files_are_moved_by_one_process_at_a_time(tmp_path: Path, fd: int) -> None:
    file = LogFile(tmp_path / "a.log", max_bytes=10, keep=3)
    output = Output(file, fd)
    output.take()
    write(output, fd, "long enough\n")
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    write(output, fd, "goes on\n")
    assert file.path.read_text() == "long enough\ngoes on\n"
    os.close(other)
    write(output, fd, "new\n")
    assert file.path.read_text() == "new\n"


def test_a_file_that_another_process_began_meanwhile_is_not_moved(tmp_path: Path, fd: int) -> None:
    class Slow(LogFile):
        """Looks at the path before the other process began the file, and after that."""

        def is_output(self, fd: int) -> bool:
            if not self.old(1).exists():
                self.path.rename(self.old(1))
                self.path.write_text("of the other\n")
                return True
            return super().is_output(fd)

    path = tmp_path / "a.log"
    handle = LogFile(path, 10, 3).open()
    os.dup2(handle, fd)
    os.close(handle)
    os.write(fd, b"long enough\n")
    file = Slow(path, 10, 3)
    write(Output(file, fd), fd, "mine\n")
    assert path.read_text() == "of the other\nmine\n"
    assert not file.old(2).exists()


def test_outputs_that_go_to_the_same_file_go_on_together(
    tmp_path: Path, fd: int, second: int
) -> None:
    file = LogFile(tmp_path / "a.log", max_bytes=10, keep=1)
    output = Output(file, fd, followers=(second,))
    output.take()
    os.write(second, b"elsewhere\n")  # a terminal's stdout is not taken
    assert file.path.read_text() == ""
    os.dup2(fd, second)
    write(output, fd, "0123456789\n")
    write(output, fd, "new\n")
    os.write(second, b"too\n")
    assert file.path.read_text() == "new\ntoo\n"


def test_a_log_that_was_moved_or_removed_is_begun_again(tmp_path: Path, fd: int) -> None:
    file = LogFile(tmp_path / "logs" / "a.log", max_bytes=10**6, keep=1)
    output = Output(file, fd)
    output.take()
    file.path.unlink()
    file.path.parent.rmdir()
    write(output, fd, "back\n")
    assert file.path.read_text() == "back\n"


def test_a_log_that_cannot_be_begun_anew_goes_on(tmp_path: Path, fd: int) -> None:
    file = LogFile(tmp_path / "logs" / "a.log", max_bytes=10, keep=1)
    output = Output(file, fd)
    output.take()
    file.path.parent.rename(tmp_path / "moved")
    (tmp_path / "logs").write_text("a file where the folder was")
    write(output, fd, "still here\n")
    assert (tmp_path / "moved" / "a.log").read_text() == "still here\n"


def test_what_is_no_plain_file_is_not_moved(fd: int) -> None:
    output = Output(LogFile(Path(os.devnull), max_bytes=0, keep=1), fd)
    output.take()
    write(output, fd, "gone\n")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_log_in_a_place_that_is_none_is_an_error(tmp_path: Path, fd: int) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(OSError, match="exists|Not a directory"):
        Output(LogFile(tmp_path / "logs" / "a.log", 10, 1), fd).take()


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    root = Path(log.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, cwd=root, check=False
    )


def test_a_crash_and_a_library_write_to_the_log(tmp_path: Path) -> None:
    """What does not go through logging is in the file as well, and stdout stays what it was."""
    path = tmp_path / "a.log"
    done = run(
        "import sys, os, ctypes, logging, pathlib\n"
        "from omlx.log import LogFile, setup\n"
        "setup('info', tag='m', file=LogFile(pathlib.Path(sys.argv[1]), 10**6, 1))\n"
        "logging.getLogger('omlx.x').info('hello')\n"
        "os.write(2, b'from a library\\n')\n"
        "print('data', flush=True)\n"
        "ctypes.string_at(0)\n",
        str(path),
    )
    assert done.returncode < 0
    assert (done.stdout, done.stderr) == ("data\n", "")
    text = path.read_text()
    assert "INFO omlx.x [m] hello\nfrom a library\n" in text
    assert "Fatal Python error: Segmentation fault" in text


def test_stderr_is_a_file_only_for_a_while(tmp_path: Path) -> None:
    """Errors before and after are for whoever started the process."""
    path = tmp_path / "a.log"
    done = run(
        "import sys, logging, pathlib\n"
        "from omlx.log import LogFile, into, setup\n"
        "log = logging.getLogger('omlx.x')\n"
        "setup('info')\n"
        "log.info('before')\n"
        "with into(LogFile(pathlib.Path(sys.argv[1]), 30, 9)):\n"
        "    [log.info('within %d', n) for n in range(3)]\n"
        "    print('by hand', file=sys.stderr)\n"
        "log.info('after')\n",
        str(path),
    )
    assert done.returncode == 0
    assert [line.split(" x ")[-1].split()[-1] for line in done.stderr.splitlines()] == [
        "before", "after",
    ]  # fmt: skip
    assert path.read_text().splitlines()[-1] == "by hand"
    assert [old.name for old in sorted(tmp_path.glob("a.log.*"))] == ["a.log.1", "a.log.2"]


def test_a_process_whose_stderr_is_the_log_already_stays_there(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    script = (
        "import sys, logging, pathlib\n"
        "from omlx.log import LogFile, into, setup\n"
        "log = logging.getLogger('omlx.x')\n"
        "setup('info')\n"
        "with into(LogFile(pathlib.Path(sys.argv[1]), 30, 9)):\n"
        "    [log.info('within %d', n) for n in range(2)]\n"
        "    print('stdout', flush=True)\n"
        "print('error: at the end', file=sys.stderr)\n"
    )
    root = Path(log.__file__).parents[1]
    with path.open("ab") as file:
        subprocess.run(
            [sys.executable, "-c", script, str(path)],
            stdout=file,
            stderr=file,
            cwd=root,
            check=True,
        )
    assert path.read_text().splitlines()[1:] == ["stdout", "error: at the end"]
    assert path.with_name("a.log.1").read_text().endswith("within 0\n")


def test_several_processes_that_rotate_lose_nothing(tmp_path: Path) -> None:
    """Four processes write at the same time; every line is in one of the files."""
    script = (
        "import sys, logging, pathlib\n"
        "from omlx.log import LogFile, setup\n"
        "setup('info', tag=sys.argv[2], file=LogFile(pathlib.Path(sys.argv[1]), 10_000, 100))\n"
        "for n in range(500):\n"
        "    logging.getLogger('omlx.x').info('line %d', n)\n"
    )
    path = tmp_path / "a.log"
    root = Path(log.__file__).parents[1]
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(path), f"p{n}"], cwd=root)
        for n in range(4)
    ]
    assert [child.wait(60) for child in children] == [0] * 4
    files = list(tmp_path.iterdir())
    assert len(files) > 1  # how many depends on how long one that moves files is kept waiting
    seen = [
        (line.split("[")[1].split("]")[0], int(line.rpartition(" ")[2]))
        for file in files
        for line in file.read_text().splitlines()
    ]
    assert sorted(seen) == sorted((f"p{p}", n) for p in range(4) for n in range(500))


def test_without_a_file_the_log_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("omlx")
    before = (logger.handlers[:], logger.level, logger.propagate)
    try:
        log.setup("warning", tag="m")
        logging.getLogger("omlx.x").info("not this")
        logging.getLogger("omlx.x").warning("this")
    finally:
        logger.handlers[:], logger.level, logger.propagate = before[0], before[1], before[2]
    assert capsys.readouterr().err.endswith(" WARNING omlx.x [m] this\n")
