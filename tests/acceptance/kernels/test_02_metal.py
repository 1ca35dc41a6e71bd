"""Point 2: Metal sources are right as C++; a removed barrier or a wrong index is noticed."""

import re
from pathlib import Path

from tests.acceptance.conftest import Figure
from tests.shim import build, sources
from tests.shim.calls import KernelError, Library, race
from tests.unit.custom_kernels import test_metal as metal


def test_all_sources_are_right_over_their_tables(tmp_path: Path, figure: Figure) -> None:
    files = metal.FILES
    library = Library(build.library(metal.programs([(files, c) for c in metal.CASES]), tmp_path))
    worst: dict[str, float] = {}
    for case in metal.CASES:
        kernel, error = case.call.kernel, case.error(library.run(case.call, files))
        worst[kernel] = max(worst.get(kernel, 0.0), error)
    assert {*worst} == {*sources.NAMES} and max(worst.values()) <= 1
    shown = ", ".join(f"{name} {error:.2f}" for name, error in sorted(worst.items()))
    figure(
        f"{len(metal.CASES)} calls of {len(worst)} Metal kernels as C++ against float64; "
        f"largest error over what is allowed: {shown}"
    )


def test_broken_sources_are_noticed(tmp_path: Path, figure: Figure) -> None:
    changes = (*metal.WRONG_INDICES, *metal.OUTSIDE)
    wanted = [(broken.files, metal.SMALL[broken.users[0]]) for broken in changes]
    library = Library(build.library(metal.programs(wanted), tmp_path))
    noticed = 0
    for files, case in wanted:
        try:
            noticed += case.error(library.run(case.call, files)) > 1
        except KernelError:
            noticed += 1
    assert noticed == len(changes)
    figure(f"{noticed} of {len(changes)} wrong indices are noticed")


def test_races_are_reported_and_there_are_none(tmp_path: Path, figure: Figure) -> None:
    whole = [(metal.FILES, metal.SMALL[name]) for name in metal.WATCHED]
    without = [(broken, metal.SMALL[user]) for broken in metal.NO_BARRIERS for user in broken.users]
    program = build.racer(
        metal.programs([*whole, *((broken.files, case) for broken, case in without)]), tmp_path
    )
    for files, case in whole:
        results, report = race(program, case.call, files, tmp_path)
        assert "WARNING" not in report and case.error(results) <= 1, report
    reported = {
        broken.label
        for broken, case in without
        if re.search(
            rf"data race(?s:.*){re.escape(broken.path)}:\d+",
            race(program, case.call, broken.files, tmp_path)[1],
        )
    }
    assert reported == {broken.label for broken in metal.NO_BARRIERS}
    figure(
        f"ThreadSanitizer: no report in {len(whole)} runs; one with the kernel's line for each of "
        f"{len(reported)} removed barriers"
    )
