"""The Metal kernels, compiled as C++: results, limits, races, and that broken kernels are noticed.

No Metal device takes part: these tests say what the sources mean, not what a GPU makes of them.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.source import read_source
from tests.shim import build, cases, sources
from tests.shim.calls import KernelError, Library, race
from tests.shim.cases import Case
from tests.shim.sources import Files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac runs them itself")
FILES = Files.read()
CASES = cases.rows_and_packings()
PACKING = ("bfloat", 4, 64)
BARRIER = re.compile(r"^\s*(threadgroup|simdgroup)_barrier\(.*\);$")
# What Metal's language lacks.
FORBIDDEN = re.compile(
    r"\bstd::|\bdouble\b|\bnew\b|\bdelete\b|\bvirtual\b|\bthrow\b|\btry\b|\bgoto\b|\bdynamic_cast\b"
    r"|\bstatic \w+ \w+;|\[[&=]?\]\s*[({]"
)

# Each is a wrong index: file, text, what stands in its place, and a case that must notice.
WRONG = (
    ("include/numbers.h", "to[2 * i + 1] = high<T>", "to[2 * i + 1] = low<T>", "few"),
    ("include/numbers.h", "size_t(min(place.row + idx,", "size_t(min(place.row,", "few"),
    ("include/numbers.h", "if (idx >= half_rows) {", "if (idx > half_rows) {", "gate few"),
    ("include/numbers.h", "10 - BITS - BITS * idx", "10 - BITS - 8 * idx", "few"),
    ("include/numbers.h", "3 - 4 * idx", "3 - 4 * (3 - idx)", "many"),
    ("include/lanes.h", "const int at = 2 * pairs * word + idx;", "const int at = idx;", "few 8"),
    ("include/lanes.h", "(row.at * num_in + column) / GROUP;", "row.at * num_in / GROUP;", "few"),
    ("include/lanes.h", "[warp][idx * ROWS + row];", "[warp][row * OUT + idx];", "few"),
    ("include/lanes.h", "x + size_t(m) * num_in + column", "x + size_t(m) * num_in + 8", "few"),
    ("include/lanes.h", "shared.factors[warp][row];", "shared.factors[warp][0];", "gate few"),
    ("include/lanes.h", "column += 32 * columns", "column += 16 * columns", "few"),
    ("include/tiles.h", "x + 8 * m * STRIDE + k", "x + 8 * m + k", "many"),
    ("include/tiles.h", "[quarter * stores + store]", "[store * 4 + quarter % 2]", "many"),
    ("include/tiles.h", "row < num_rows && column", "column", "many"),
    ("include/tiles.h", "if (column >= RUNS) shared", "if (column > RUNS) shared", "many"),
    ("include/tiles.h", "[quarter][row][row]", "[quarter][0][row]", "many"),
    ("include/tiles.h", "&shared.sums[half_idx][0][8 * m]", "&shared.sums[half_idx][0][0]", "many"),
    ("include/tiles.h", "word / pairs * 2 * pairs + word % pairs;", "2 * word;", "many"),
    ("include/tiles.h", "shared.sums[step % 2][run]", "shared.sums[step % 2][run / 8]", "many"),
    ("include/tiles.h", "to + 8 * t * ROWS + 8 * m", "to + 8 * t * ROWS", "many"),
    ("include/tiles.h", "shared.factors[chunk / CHUNKS]", "shared.factors[chunk % 8]", "gate many"),
    ("metal/qmm_small.metal", "size_t(row) * num_out + out", "size_t(out) * num_rows + row", "few"),
    ("metal/gemm_small.metal", "first + i % OUT;", "first + (i + 1) % OUT;", "gemm"),
    ("metal/norm_qkv.metal", "one.row = first - num_q;", "one.row = first;", "qkv"),
    ("metal/norm_gate_up.metal", "HALF + i % HALF", "i % HALF", "gate few"),
    ("metal/qk_rope.metal", "(size_t(row) * HK + head - HQ) * D", "(head - HQ) * D", "rope"),
    ("metal/qk_rope.metal", "to[i + HALF] = from[i + HALF];", "to[i + HALF] = from[i];", "rope"),
)  # fmt: skip
# Reads or writes beyond an array that need not change a result.
BEYOND = (
    ("include/numbers.h", "idx, place.weights.num_out - 1", "idx, 1 << 20", "few"),
    ("include/tiles.h", "min(column, num_in - 128 / BITS)", "column", "last"),
    ("metal/qmm_small.metal", "if (out >= num_out) continue;", "", "few"),
)  # fmt: skip
SMALL = {
    "few": cases.qmm_small(PACKING, 3, 18),
    "few 8": cases.qmm_small(("half", 8, 32), 2, 18),
    "many": cases.qmm_small(PACKING, 11, 18),
    "wide": cases.qmm_small(PACKING, 16, 40, out=16),
    "last": cases.qmm_small(PACKING, 8, 8),
    "gemm": cases.gemm_small("half", 3, 18, 328),
    "gemm many": cases.gemm_small("half", 9, 18, 136),
    "qkv": cases.norm_qkv(PACKING, 2, (16, 8, 8)),
    "qkv many": cases.norm_qkv(PACKING, 6, (16, 8, 8)),
    "gate few": cases.norm_gate_up(PACKING, 2, 10),
    "gate many": cases.norm_gate_up(PACKING, 9, 10),
    "rope": cases.qk_rope("bfloat", 3, (2, 1, 128), has_norms=True),
}
WATCHED = ("few", "many", "wide", "gemm", "gemm many", "qkv", "qkv many", "gate few", "gate many",
           "rope")  # fmt: skip
# Under which cases a removed barrier of a file must be noticed, by one of them.
USERS = {"include/lanes.h": ("few",), "include/tiles.h": ("wide", "gate many")}


@dataclass(frozen=True, slots=True)
class Broken:
    """Sources with one line changed, and the cases that must notice."""

    path: str
    line: int
    files: Files
    users: tuple[str, ...]

    @property
    def label(self) -> str:
        """Where it is broken."""
        return f"{self.path}:{self.line}"


def wrong_index(path: str, text: str, other: str, user: str) -> Broken:
    lines = FILES.texts[path].split("\n")
    found = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(found) == 1, f"{text!r} is on lines {found} of {path}"
    changed = lines[found[0] - 1].replace(text, other)
    return Broken(path, found[0], FILES.changed(path, found[0], changed), (user,))


def without_a_barrier() -> list[Broken]:
    return [
        Broken(path, number, FILES.changed(path, number, "{}"), USERS[path])
        for path, text in FILES.texts.items()
        for number, line in enumerate(text.split("\n"), 1)
        if BARRIER.match(line)
    ]


WRONG_INDICES = [wrong_index(*change) for change in WRONG]
OUTSIDE = [wrong_index(*change) for change in BEYOND]
NO_BARRIERS = without_a_barrier()


def programs(wanted: list[tuple[Files, Case]]) -> list[str]:
    """C++ of all, in two parts of about the same work."""
    instances = {case.call.instance.symbol(files): (files, case.call.instance)
                 for files, case in wanted}  # fmt: skip
    each = [*instances.values()]
    return [sources.program(each[part::2]) for part in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where all workers of this run find what one of them has compiled."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "metal"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> Library:
    wanted = [(FILES, case) for case in (*CASES, *SMALL.values())]
    for broken in (*WRONG_INDICES, *OUTSIDE):
        wanted += [(broken.files, SMALL[user]) for user in broken.users]
    return Library(build.library(programs(wanted), folder))


@pytest.fixture(scope="module")
def racer(folder: Path) -> Path:
    wanted = [(FILES, SMALL[name]) for name in WATCHED]
    for broken in NO_BARRIERS:
        wanted += [(broken.files, SMALL[user]) for user in broken.users]
    return build.racer(programs(wanted), folder)


def test_every_metal_source_has_an_op_and_a_case() -> None:
    assert set(sources.NAMES) <= set(NAMES)
    assert {case.call.kernel for case in CASES} == set(sources.NAMES)
    assert {SMALL[name].call.kernel for name in WATCHED} == set(sources.NAMES)


@pytest.mark.parametrize("name", sources.NAMES)
def test_what_is_compiled_here_is_what_mlx_gets(name: str) -> None:
    source = read_source("metal", name, folder=sources.KERNELS)

    def bare(text: str) -> list[str]:
        return [line for line in text.split("\n") if line and not line.startswith("#line")]

    assert bare(FILES.header(name)) == bare(source.header)
    own, given = bare(FILES.body(name)), bare(source.body)
    differ = [line for mine, line in zip(own, given, strict=True) if mine != line]
    assert all(line.startswith("threadgroup ") for line in differ)


@pytest.mark.parametrize("path", sorted(FILES.texts))
def test_a_source_keeps_to_metals_language(path: str) -> None:
    for number, line in enumerate(FILES.texts[path].split("\n"), 1):
        code = line.partition("//")[0]
        assert not FORBIDDEN.search(code), f"{path}:{number}: {line}"
        assert len(line) <= 100, f"{path}:{number} is long"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_kernel_gives_what_float64_gives(library: Library, case: Case) -> None:
    assert case.error(library.run(case.call, FILES)) <= 1


@pytest.mark.parametrize("broken", WRONG_INDICES, ids=lambda broken: broken.label)
def test_a_wrong_index_is_noticed(library: Library, broken: Broken) -> None:
    case = SMALL[broken.users[0]]
    assert case.error(library.run(case.call, FILES)) <= 1
    try:
        error = case.error(library.run(case.call, broken.files))
    except KernelError:
        return
    assert error > 4


@pytest.mark.parametrize("broken", OUTSIDE, ids=lambda broken: broken.label)
def test_an_access_beyond_an_array_is_noticed(library: Library, broken: Broken) -> None:
    case = SMALL[broken.users[0]]
    with pytest.raises(KernelError, match="beyond the end of argument"):
        library.run(case.call, broken.files)


@pytest.mark.parametrize("name", WATCHED)
def test_threads_dont_race(racer: Path, name: str, tmp_path: Path) -> None:
    case = SMALL[name]
    results, report = race(racer, case.call, FILES, tmp_path)
    assert "WARNING" not in report, report
    assert case.error(results) <= 1


@pytest.mark.parametrize("broken", NO_BARRIERS, ids=lambda broken: broken.label)
def test_a_removed_barrier_is_reported_with_its_lines(
    racer: Path, broken: Broken, tmp_path: Path
) -> None:
    reports = [race(racer, SMALL[user].call, broken.files, tmp_path)[1] for user in broken.users]
    found = [report for report in reports if "data race" in report]
    assert found, f"none of {broken.users} needs the barrier"
    assert re.search(rf"{re.escape(broken.path)}:\d+", found[0]), found[0]
