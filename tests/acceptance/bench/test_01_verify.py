"""Point 1, checks: the whole course on the demo model, and each way to fail it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from omlx.bench.ownverify import NUM_STEPS, SETTINGS, verify_own
from omlx.bench.result import Check
from omlx.bench.servers import Serve, Server
from omlx.bench.step import Steps
from omlx.bench.tooled import with_tool_template
from omlx.bench.verify import CONCURRENT, NAMES, RESTART, SAME, TOOLS, Lost, Verifier, Wanted
from omlx.models.demo import DEMO_ID
from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import KEPT
from tests.live import run_omlx


def document(home: Path, *args: str) -> tuple[int, Any]:
    done = run_omlx("bench", "verify", *args, "--json", home=home, timeout_s=280)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_the_demo_course(demo: Path, tmp_path: Path, figure: Figure) -> None:
    """`omlx bench verify --demo --json`: all four pass."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (home / "models" / DEMO_ID).symlink_to(demo)
    began = time.monotonic()
    code, found = document(home, "--demo")
    seconds = time.monotonic() - began
    assert code == 0, found
    assert [(check["name"], check["passed"]) for check in found["checks"]] == [
        (name, True) for name in NAMES
    ]
    for check in found["checks"]:
        figure(f"{check['name']}: {check['reason']}")
    figure(f"the whole course took {seconds:.0f} s (a minute is its limit on two quiet cores)")
    (KEPT / "verify.json").write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A tiny random model whose template prints tools."""
    return with_tool_template(tiny_model, tmp_path_factory.mktemp("tooled"))


def checks(model: Path, settings: dict[str, object], home: Path) -> dict[str, Check]:
    """The checks of a server of its own, with these settings over the usual ones."""

    def explain(_: str) -> Lost | None:
        return None

    with Server(Serve((model,), {**SETTINGS, **settings}), home=home) as server:
        found = verify_own(server, model.name, Wanted(), Steps(NUM_STEPS), explain)
    return {check.name: check for check in found}


BROKEN: dict[str, tuple[dict[str, object], dict[str, bool | None]]] = {
    "no cache": (
        {"cache.enabled": False},
        {SAME: False, RESTART: False, TOOLS: False, CONCURRENT: False},
    ),
    "no disk tier": (
        {"cache.max_size": 0},
        {SAME: True, RESTART: False, TOOLS: True, CONCURRENT: True},
    ),
    "nothing is read": (
        {"cache.load": "never"},
        {SAME: True, RESTART: False, TOOLS: True, CONCURRENT: True},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_fails(tooled: Path, tmp_path: Path, figure: Figure, name: str) -> None:
    settings, expected = BROKEN[name]
    found = checks(tooled, settings, tmp_path)
    outcomes = {check.name: check.is_passed for check in found.values()}
    assert outcomes == expected, found
    failed = [check for check in found.values() if check.is_passed is False]
    assert all(check.reason for check in failed)
    figure(f"{name}: fails {', '.join(check.name for check in failed)}; {failed[0].reason}")


def test_an_order_of_tools_that_is_not_kept_fails(
    tooled: Path, tmp_path: Path, figure: Figure
) -> None:
    """With the stable form said to be on, and a server that has it off."""
    serve = Serve((tooled,), {**SETTINGS, "prompt.tool_order": False})
    with Server(serve, home=tmp_path) as server:
        verifier = Verifier(server.target(tooled.name), Wanted(), Steps(1))
        off = verifier.run(TOOLS, verifier.tools)
    assert off.is_passed, "its own word for the part will do"
    assert str(off.figures["lost_part"]).startswith("tool 0")
    assert int(off.figures["uncached_tokens"] or 0) > 100
    figure(f"off: {off.reason}")
