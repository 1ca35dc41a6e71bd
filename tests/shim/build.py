"""Compiling C++ of Metal kernels: one library for values, one program for races.

Needs clang 17 or later with ThreadSanitizer's library; `COMPILER` says which is found. Knows
nothing of kernels' arguments.
"""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SHIM = Path(__file__).parent
_NAMES = ("clang++-19", "clang++-18", "clang++-17", "clang++")
_FLAGS = ("-fno-strict-aliasing", "-ffp-contract=off", "-fPIC")
# Metal's dialect; what only it or only clang finds strange is not the kernels' fault. Compiling
# takes longer than running, so kernels are not optimized.
_KERNEL = (
    "-O0", "-std=c++14", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wno-c++17-extensions",
    "-Wno-unknown-pragmas", "-Wno-pass-failed", "-Wno-sign-conversion",
    "-Wno-implicit-float-conversion", "-Wno-implicit-int-float-conversion",
    "-Wno-unused-parameter", "-Wno-unused-function", "-Wno-psabi", f"-isystem{SHIM}",
)  # fmt: skip


def compiler() -> str:
    """The compiler's path; an assertion that says what to install."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    assert found, "clang was not found: apt-get install clang-19 libclang-rt-19-dev"
    return found


@contextmanager
def once(path: Path) -> Iterator[bool]:
    """Whether `path` is still to be made; other processes that want it wait, and fail as this one.

    An assertion with what the compiler said where it has failed before.
    """
    said = path.with_name(f"{path.name}.failed")
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not said.exists(), said.read_text()
        try:
            yield not path.exists()
        except AssertionError as error:
            said.write_text(str(error))
            raise


def run_compiler(arguments: Sequence[str]) -> str:
    """What the compiler says; an assertion with it where it fails."""
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def digest(*texts: str) -> str:
    """A name for what is made of `texts` and of the shim."""
    parts = [*texts, *(p.read_text() for p in sorted(SHIM.iterdir()) if p.is_file())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def library(programs: Sequence[str], folder: Path) -> Path:
    """A shared library of the programs, which are compiled beside each other."""
    path = folder / f"kernels_{digest(*programs)}.so"
    with once(path) as is_wanted:
        if is_wanted:
            _compile(programs, path, ("-DSHIM_SPACES",), ("-shared",))
    return path


def racer(programs: Sequence[str], folder: Path) -> Path:
    """A program that runs a kernel of the programs under ThreadSanitizer."""
    path = folder / f"racer_{digest(*programs)}"
    with once(path) as is_wanted:
        if is_wanted:
            watched = ("-fsanitize=thread", "-g1", "-gdwarf-4")
            link = ("-fsanitize=thread", "-rdynamic", "-ldl", str(SHIM / "racer.cpp"))
            _compile(programs, path, watched, link)
    return path


def _compile(
    programs: Sequence[str], path: Path, kernel_flags: Sequence[str], link: Sequence[str]
) -> None:
    running: list[tuple[subprocess.Popen[str], Path]] = []
    for idx, text in enumerate(programs):
        source = path.with_name(f"{path.name}_{idx}.cpp")
        source.write_text(text)
        to = source.with_suffix(".o")
        command = [compiler(), *_FLAGS, *_KERNEL, *kernel_flags, "-c", str(source), "-o", str(to)]
        running.append((subprocess.Popen(command, stderr=subprocess.PIPE, text=True), to))
    said = [process.communicate()[1] for process, _ in running]
    for (process, _), text in zip(running, said, strict=True):
        assert process.returncode == 0, text[:6000]
    objects = []
    for name in ("threads", "rounding"):
        to = path.with_name(f"{path.name}_{name}.o")
        run_compiler([*_FLAGS, "-O1", "-std=c++17", "-c", str(SHIM / f"{name}.cpp"), "-o", str(to)])
        objects.append(str(to))
    half = path.with_name(f"{path.name}.part")
    run_compiler([*_FLAGS, *link, *objects, *(str(o) for _, o in running), "-o", str(half)])
    half.rename(path)
