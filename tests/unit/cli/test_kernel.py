"""`omlx kernel` without its process: what is built in which order, exit codes, output."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx.cli.view.kernels import read_listing, to_text
from omlx.errors import EngineError
from tests.unit.cli.conftest import Cli

NAMES = ("flat_rows", "qmm_small", "gemm_small", "norm_qkv", "norm_gate_up", "qk_rope")


class Task:
    """Stands for the process: builds kernels, of which some fail and some end it."""

    def __init__(self) -> None:
        self.device: str | None = "H9000"
        self.states = dict.fromkeys(NAMES, "not built")
        self.reasons = dict.fromkeys(NAMES, "")
        self.wrong: set[str] = set()
        self.deadly: set[str] = set()
        self.built: list[str] = []
        self.records: set[str] = set()

    def __call__(self, module: str, spec: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        assert module == "omlx.models.kernel_task"
        self.records.add(spec["records"])
        name = spec["build"]
        if name is not None and spec["died"] is not None:
            self.states[name], self.reasons[name] = "failed", spec["died"]
        elif name is not None:
            self.built.append(name)
            if name in self.deadly:
                raise EngineError("ended with exit code -6: illegal memory access")
            self.states[name] = "failed" if name in self.wrong else "verified"
            self.reasons[name] = "an error of 3" if name in self.wrong else ""
        return {
            "device": self.device,
            "backend": self.device and "cuda",
            "kernels": [self.shown(name) for name in NAMES],
        }

    def shown(self, name: str) -> dict[str, Any]:
        state = self.states[name]
        return {
            "name": name, "summary": f"does {name}", "device": self.device, "state": state,
            "reason": self.reasons[name], "num_cases": 3, "errors": {"bfloat16": 0.001},
            "speedups": {"1 row": 0.9, "2 rows": 2.5} if state == "verified" else {},
        }  # fmt: skip


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    found = Task()
    monkeypatch.setattr("omlx.engine.task.run_task", found)
    return found


def test_all_that_is_not_verified_is_built(cli: Cli, task: Task) -> None:
    task.states["qmm_small"] = "verified"
    task.states["gemm_small"] = "no kernel here"
    outcome = cli("kernel", "build")
    assert outcome.code == 0
    assert task.built == ["flat_rows", "norm_qkv", "norm_gate_up", "qk_rope"]
    assert "0.90 to 2.50" in outcome.out and "GPU: H9000 (cuda)" in outcome.out
    (records,) = task.records
    assert records.endswith("/state/kernels.json")


def test_names_say_what_is_built(cli: Cli, task: Task) -> None:
    task.states = dict.fromkeys(NAMES, "verified")
    assert cli("kernel", "build", "qk_rope", "qmm_small").code == 0
    assert task.built == ["qmm_small", "qk_rope"]


def test_a_kernel_that_this_device_has_none_of_is_said(cli: Cli, task: Task) -> None:
    task.states["flat_rows"], task.reasons["flat_rows"] = "no kernel here", "mlx needs none"
    outcome = cli("kernel", "build", "flat_rows", "qk_rope")
    assert outcome.code == 0 and task.built == ["qk_rope"]
    assert "flat_rows is not built: mlx needs none" in outcome.err


def test_again_builds_all(cli: Cli, task: Task) -> None:
    task.states = dict.fromkeys(NAMES, "verified")
    outcome = cli("kernel", "build")
    assert (outcome.code, task.built) == (0, []) and "--again" in outcome.err
    assert cli("kernel", "build", "--again").code == 0
    assert task.built == list(NAMES)


def test_a_kernel_that_fails_is_said_and_the_others_are_built(cli: Cli, task: Task) -> None:
    task.wrong = {"qmm_small"}
    outcome = cli("kernel", "build")
    assert outcome.code == 1 and task.built == list(NAMES)
    assert "qmm_small: an error of 3" in outcome.out
    assert "omlx kernel build qmm_small" in outcome.out


def test_a_process_that_dies_is_its_kernels_verdict(cli: Cli, task: Task) -> None:
    task.deadly = {"norm_qkv"}
    outcome = cli("kernel", "build", "--json")
    assert outcome.code == 1 and task.built == list(NAMES)
    shown = {one["name"]: one for one in json.loads(outcome.out)["kernels"]}
    assert shown["norm_qkv"]["state"] == "failed"
    assert "illegal memory access" in shown["norm_qkv"]["reason"]
    assert shown["qk_rope"]["state"] == "verified"


@pytest.mark.parametrize("args", [(), ("qmm_small",), ("--again",)])
def test_on_a_cpu_there_is_nothing_to_build(cli: Cli, task: Task, args: tuple[str, ...]) -> None:
    task.device = None
    task.states = dict.fromkeys(NAMES, "no kernel here")
    outcome = cli("kernel", "build", *args)
    assert (outcome.code, outcome.err, task.built) == (0, "", [])
    assert "there is nothing to build" in outcome.out


def test_an_unknown_name_is_refused_with_those_there_are(cli: Cli, task: Task) -> None:
    outcome = cli("kernel", "build", "qmm")
    assert outcome.code == 2 and "no kernel 'qmm': they are flat_rows, qmm_small" in outcome.err


def test_status_tells_states_and_reasons(cli: Cli, task: Task) -> None:
    task.states["qmm_small"], task.states["qk_rope"] = "verified", "failed"
    task.reasons["qk_rope"] = "part of the output was not written"
    outcome = cli("kernel", "status")
    assert outcome.code == 0 and task.built == []
    assert "qk_rope: part of the output was not written" in outcome.out
    assert "omlx kernel build flat_rows gemm_small" in outcome.out


def test_status_in_json_has_each_shape(cli: Cli, task: Task) -> None:
    task.states["qmm_small"] = "verified"
    whole = json.loads(cli("kernel", "status", "--json").out)
    assert (whole["device"], whole["backend"]) == ("H9000", "cuda")
    shown = {one["name"]: one for one in whole["kernels"]}
    assert shown["qmm_small"]["speedups"] == {"1 row": 0.9, "2 rows": 2.5}
    assert shown["qmm_small"]["models"] == []


def test_status_names_the_models_that_kernels_serve(task: Task) -> None:
    task.states = dict.fromkeys(NAMES, "verified")
    listing = read_listing(task("omlx.models.kernel_task", {"records": "", "build": None}))
    text = to_text(listing, {"qmm_small": ["big", "small"]})
    (line,) = [line for line in text.splitlines() if line.startswith("qmm_small")]
    assert "big, small" in line
    assert "to build" not in text


def test_the_real_status_leaves_mlx_to_its_process(home: Path) -> None:
    code = (
        "import sys\nfrom omlx.cli.main import run\n"
        "code = run(['kernel', 'status'])\nsys.exit(code or 'mlx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in NAMES)


def test_status_asks_servers_that_run(
    cli: Cli, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omlx.launch.background import Found

    class Server:
        address, certificate = "http://127.0.0.1:1", None

    models = [{"id": "big", "kernels": ["qmm_small"]}, {"id": "odd", "kernels": 3}, "no model"]
    monkeypatch.setattr("omlx.launch.background.find", lambda _: Found((Server(),), ()))
    monkeypatch.setattr("omlx.client.get_json", lambda *_, **__: {"models": models})
    shown = json.loads(cli("kernel", "status", "--json").out)["kernels"]
    assert {one["name"]: one["models"] for one in shown if one["models"]} == {"qmm_small": ["big"]}
