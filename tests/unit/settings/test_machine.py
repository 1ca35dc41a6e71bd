"""The machine, and the hardware profile that comes with omlx for it."""

from pathlib import Path

import pytest

from omlx.settings import places
from omlx.settings.build import load
from omlx.settings.layers import OriginKind, Scope, from_toml
from omlx.settings.machine import HARDWARE_GB, Machine, MachineKind, this_machine

GIB = 2**30
HARDWARE = places.data_dir("profiles") / "hardware"
NAMES = sorted(path.stem for path in HARDWARE.glob("*.toml"))


def mac(gib: float) -> Machine:
    return Machine(MachineKind.METAL, int(gib * GIB))


def test_there_is_one_for_every_machine() -> None:
    assert set(NAMES) == {*(f"{gb}gb" for gb in HARDWARE_GB), "cpu", "cuda"}


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_loaded_and_sets_ceiling_tiers_and_concurrency(
    name: str, tmp_path: Path
) -> None:
    layer = from_toml(HARDWARE / f"{name}.toml", shown=name, scope=Scope.ALL)
    assert not layer.problems
    assert {entry.path for entry in layer.entries} >= {
        "engine.memory_limit",
        "cache.memory_size",
        "scheduler.max_concurrent_requests",
    }
    resolved = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path, profile=name)
    assert {resolved.origins[e.path].kind for e in layer.entries} == {OriginKind.PROFILE}


@pytest.mark.parametrize(
    ("machine", "profile"),
    [
        (mac(8), "16gb"), (mac(16), "16gb"), (mac(18), "16gb"), (mac(24), "24gb"),
        (mac(36), "32gb"), (mac(64), "64gb"), (mac(96), "96gb"), (mac(512), "512gb"),
        (mac(1024), "512gb"),
        (Machine(MachineKind.CPU, 64 * GIB), "cpu"),
        (Machine(MachineKind.CUDA, 64 * GIB, lambda: 80 * GIB), "cuda"),
    ],
)  # fmt: skip
def test_the_profile_of_a_machine(machine: Machine, profile: str, tmp_path: Path) -> None:
    assert machine.profile == profile
    resolved = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path, machine=machine)
    origin = resolved.origins["scheduler.max_concurrent_requests"]
    assert origin.kind is OriginKind.PROFILE
    assert f"hardware/{profile}.toml:" in origin.where


def test_the_memory_tier_stays_below_the_ceiling(tmp_path: Path) -> None:
    for gb in HARDWARE_GB:
        resolved = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path, machine=mac(gb))
        size, ceiling = resolved.settings.cache.memory_size, resolved.ceiling_bytes
        assert isinstance(size, int) and ceiling is not None
        assert size <= ceiling / 4


def test_everything_of_the_users_is_stronger(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[scheduler]\nmax_concurrent_requests = 3\n")
    env = {"OMLX_HOME": str(tmp_path)}
    resolved = load(env=env, cwd=tmp_path, machine=mac(64))
    assert resolved.settings.scheduler.max_concurrent_requests == 3
    (lost,) = resolved.shadowed["scheduler.max_concurrent_requests"]
    assert lost.value == 8 and "64gb.toml" in lost.origin.where
    env["OMLX_SCHEDULER_MAX_CONCURRENT_REQUESTS"] = "5"
    resolved = load(env=env, cwd=tmp_path, machine=mac(64))
    assert resolved.settings.scheduler.max_concurrent_requests == 5


def test_another_machines_profile_replaces_that_of_this_one(tmp_path: Path) -> None:
    env = {"OMLX_HOME": str(tmp_path)}
    resolved = load(env=env, cwd=tmp_path, machine=mac(512), profile="16gb")
    assert resolved.settings.cache.memory_size == 10**9
    assert resolved.shadowed == {}
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.toml").write_text("[scheduler]\nmax_queue = 3\n")
    resolved = load(env=env, cwd=tmp_path, machine=mac(512), profile="mine")
    assert resolved.settings.scheduler.max_queue == 3
    assert resolved.settings.cache.memory_size == 64 * 10**9


def test_no_machine_no_profile(tmp_path: Path) -> None:
    resolved = load(env={"OMLX_HOME": str(tmp_path)}, cwd=tmp_path)
    assert {origin.kind for origin in resolved.origins.values()} == {OriginKind.DEFAULT}
    assert resolved.ceiling_bytes is None


@pytest.mark.parametrize(
    ("machine", "limit", "expected"),
    [
        (Machine(MachineKind.CPU, 800), "safe", 600),
        (Machine(MachineKind.CPU, 800), "balanced", 700),
        (Machine(MachineKind.CPU, 800), "aggressive", 760),
        (Machine(MachineKind.CPU, 800), 300, 300),
        (Machine(MachineKind.CPU, 800), 9000, 800),
        (Machine(MachineKind.CUDA, 800, lambda: 400), "balanced", 350),
        (Machine(MachineKind.CUDA, 800), "balanced", 700),
        (mac(24), "balanced", 14 * GIB),
        (mac(64), "safe", 36 * GIB),
    ],
)
def test_ceilings(machine: Machine, limit: int | str, expected: int) -> None:
    assert machine.ceiling_bytes(limit) == pytest.approx(expected, rel=1e-9)


def detect(root: Path, **more: object) -> Machine:
    options = {"platform": "linux", "memory": lambda: 1000, "has_cuda_build": lambda: False}
    return this_machine(root=root, **{**options, **more})


def test_a_mac() -> None:
    found = this_machine(platform="darwin", memory=lambda: 16 * GIB)
    assert (found.kind, found.memory_bytes) == (MachineKind.METAL, 16 * GIB)


def test_a_container_has_what_it_is_given(tmp_path: Path) -> None:
    assert (detect(tmp_path).kind, detect(tmp_path).memory_bytes) == (MachineKind.CPU, 1000)
    group = tmp_path / "sys/fs/cgroup"
    own = group / "system.slice/omlx.service"
    own.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/omlx.service\n")
    assert detect(tmp_path).memory_bytes == 1000
    (own / "memory.max").write_text("700\n")
    assert detect(tmp_path).memory_bytes == 700
    (group / "system.slice" / "memory.max").write_text("600\n")
    assert detect(tmp_path).memory_bytes == 600
    (group / "memory").mkdir()
    (group / "memory" / "memory.limit_in_bytes").write_text("500\n")
    assert detect(tmp_path).memory_bytes == 500


def test_a_gpu_counts_with_a_build_for_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert detect(tmp_path).kind is MachineKind.CPU
    found = detect(tmp_path, has_cuda_build=lambda: True, device=lambda: 7)
    assert (found.kind, found.memory_bytes, found.usable_bytes()) == (MachineKind.CUDA, 1000, 7)


def test_this_machine_is_one() -> None:
    assert this_machine().memory_bytes > GIB // 2
