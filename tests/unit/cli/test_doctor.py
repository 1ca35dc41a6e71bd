"""`omlx doctor`: each check on a machine that is made up, and the command as a whole."""

import json
import plistlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import omlx.cli.checks.all
import omlx.cli.doctor
from omlx import __version__
from omlx.cli.checks import access, disk, machine, programs, software, wear
from omlx.cli.checks.finding import Check, Finding, Level, Look, Mount, ok, warning
from omlx.launch.service.spec import State, Word
from omlx.launch.service.tool import Done
from omlx.settings.build import load
from omlx.settings.machine import Machine, MachineKind
from tests.fakes.supervisor import FakeSupervisor, FakeTool
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_background import leave_state

GB = 10**9
MLX = {"mlx": "0.32.4", "error": None, "backend": "cpu", "device": "x", "gflops": 50.0}


def look(tmp_path: Path, *, cli: dict[str, Any] | None = None, **more: Any) -> Look:
    """A Linux machine with 64 GB, whose user has an empty folder."""
    user = tmp_path / "ann"
    home = user / ".omlx"
    home.mkdir(parents=True, exist_ok=True)
    resolved = load(
        cli={"cache.min_free": "0", "models.dir": (), **(cli or {})},
        env={"OMLX_HOME": str(home), "HF_HUB_CACHE": str(tmp_path / "hub")},
        cwd=home,
        machine=Machine(MachineKind.CPU, 64 * 2**30),
    )
    plain: dict[str, Any] = {
        "env": {"HOME": str(user), "PATH": ""}, "run": FakeTool({"": Done(127)}),
        "system": "linux", "arch": "x86_64", "python": (3, 12, 1), "root": tmp_path / "root",
        "probe": MLX,
    }  # fmt: skip
    return Look(resolved, **{**plain, **more})


def found(check: Check, on: Look) -> dict[str, Finding]:
    """The findings by their level and topic; every problem has a fix."""
    findings = list(check(on))
    assert all(one.fix for one in findings if one.level is not Level.OK)
    return {f"{one.level.value} {one.topic}": one for one in findings}


# ---- Python and mlx


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({}, "ok python"),
        ({"python": (3, 10, 9)}, "broken python"),
        ({"python": (3, 14, 0)}, "broken python"),
        ({"system": "darwin", "arch": "x86_64"}, "broken python"),
        ({"system": "darwin", "arch": "arm64"}, "ok python"),
    ],
)
def test_python(tmp_path: Path, more: dict[str, Any], key: str) -> None:
    assert list(found(software.check_python, look(tmp_path, **more))) == [key]


def test_two_installations_on_path(tmp_path: Path) -> None:
    for name in ("one", "two", "link"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "omlx").touch(0o755)
    (tmp_path / "link" / "omlx").symlink_to(tmp_path / "one" / "omlx")
    path = f"{tmp_path}/link:{tmp_path}/one:/no/such"
    assert found(software.check_installations, look(tmp_path, env={"PATH": path})) == {}
    on = look(tmp_path, env={"PATH": f"{path}:{tmp_path}/two"})
    said = found(software.check_installations, on)["warning installations"]
    assert f"{tmp_path}/link/omlx comes before {tmp_path}/two/omlx" in said.text


def test_mlx_that_is_missing_names_the_extra(tmp_path: Path) -> None:
    gone = {"mlx": None, "error": "mlx is not installed"}
    said = found(software.check_mlx, look(tmp_path, probe=gone))["broken mlx"]
    assert "omlx[cpu]" in said.fix and said.fix.startswith("pip install 'omlx[cpu]'")
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidiactl").touch()
    said = found(software.check_mlx, look(tmp_path, probe=gone))["broken mlx"]
    assert said.fix.startswith("pip install 'omlx[cuda13]'")
    said = found(software.check_mlx, look(tmp_path))["warning mlx"]
    assert "NVIDIA" in said.text
    on_mac = look(tmp_path, probe=gone, system="darwin")
    assert "Apple silicon" in found(software.check_mlx, on_mac)["broken mlx"].fix


def test_what_the_probe_says() -> None:
    assert software.read_probe(Done(0, 'noise\n{"mlx": "1", "error": null}\n'))["mlx"] == "1"
    assert "signal 6" in str(software.read_probe(Done(-6, "", "terminate\n"))["error"])
    assert "exit code 0" in str(software.read_probe(Done(0, "nothing"))["error"])


def test_blas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = ["libopenblas.so.0"]
    monkeypatch.setattr("omlx.engine.blas.preload_library", lambda setting: libraries[0])
    assert "ok blas" in found(software.check_blas, look(tmp_path))
    slow = look(tmp_path, probe={**MLX, "gflops": 2.0})
    assert "slow" in found(software.check_blas, slow)["warning blas"].text
    libraries[0] = None  # type: ignore[call-overload]
    assert "apt install" in found(software.check_blas, look(tmp_path))["warning blas"].fix
    assert found(software.check_blas, look(tmp_path, probe={**MLX, "backend": "cuda"})) == {}


def test_kernels(tmp_path: Path) -> None:
    assert found(software.check_kernels, look(tmp_path)) == {}
    states = {"a": "verified", "b": "not built", "c": "failed"}
    said = list(software.check_kernels(look(tmp_path, probe={**MLX, "kernels": states})))
    assert [one.text for one in said] == ["wrong on this device, and not used: c", "not built: b"]
    on = look(tmp_path, probe={**MLX, "kernels": {"a": "verified"}})
    assert "ok kernels" in found(software.check_kernels, on)


# ---- memory, files, port


def test_memory_and_models(tmp_path: Path) -> None:
    said = found(machine.check_memory, look(tmp_path))
    assert "ok memory" in said and said["warning models"].fix == "omlx model pull demo"
    small = look(tmp_path, cli={"engine.memory_limit": "1GB"})
    assert "1.0 GB of" in found(machine.check_memory, small)["warning memory"].text
    gone = look(tmp_path, cli={"models.dir": (f"{tmp_path}/gone",)})
    assert "cannot be read" in found(machine.check_memory, gone)["broken models"].text


@pytest.mark.parametrize(
    ("soft", "key"), [(256, "warning files"), (8192, "ok files"), (-1, "ok files")]
)
def test_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, key: str) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda what: (soft, -1))
    assert list(found(machine.check_files, look(tmp_path))) == [key]


def test_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = found(machine.check_port, look(tmp_path, cli={"server.port": str(port)}))
        assert f"127.0.0.1:{port}: taken" in said["broken port"].text
        on = look(tmp_path, cli={"server.port": str(port)})
        leave_state(on.home, f"http://127.0.0.1:{port}")
        assert "ok port" in found(machine.check_port, on)
    free = look(tmp_path, cli={"server.port": "1"})
    assert set(found(machine.check_port, free)) <= {"ok port", "broken port"}
    assert found(machine.check_port, look(tmp_path, cli={"server.port": "0"})) == {}
    odd = look(tmp_path, cli={"server.host": "192.0.2.1"})
    assert "can't listen" in found(machine.check_port, odd)["broken port"].text


# ---- disk


def test_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = look(tmp_path)
    assert "ok disk" in found(disk.check_space, on)
    assert list(on.home.iterdir()) == []  # nothing is made to look
    full = look(tmp_path, cli={"cache.min_free": "1000TB"})
    assert "nothing new is stored" in found(disk.check_space, full)["warning disk"].text
    off = look(tmp_path, cli={"cache.max_size": "0"})
    assert "off by setting" in found(disk.check_space, off)["warning disk"].text
    monkeypatch.setattr("omlx.server.probe.write_fault", lambda folder: "Read-only file system")
    assert "Read-only" in found(disk.check_space, on)["broken disk"].text


def test_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_BYTES", 4_000_000)
    assert "disk speed" in next(iter(found(disk.check_speed, look(tmp_path))))
    monkeypatch.setattr(disk, "_speed", lambda folder: (900e6, 90e6))
    said = found(disk.check_speed, look(tmp_path))["warning disk speed"]
    assert "90.0 MB/s read" in said.text
    assert found(disk.check_speed, look(tmp_path, cli={"cache.min_free": "1000TB"})) == {}


@pytest.mark.parametrize(
    ("kind", "word"), [("nfs4", "network"), ("smbfs", "network"), ("tmpfs", "in memory")]
)
def test_volumes_that_are_no_good_place(tmp_path: Path, kind: str, word: str) -> None:
    mounts = (Mount("/dev/a", Path("/"), "ext4"), Mount("b", tmp_path / "ann", kind))
    said = found(disk.check_place, look(tmp_path, mounts=mounts))["warning disk place"]
    assert word in said.text and kind in said.text


def test_external_volumes(tmp_path: Path) -> None:
    real = tmp_path / "root" / "sys" / "devices" / "usb1" / "block" / "sdb" / "sdb1"
    real.mkdir(parents=True)
    (real / "partition").write_text("1\n")
    (real.parent / "removable").write_text("0\n")
    block = tmp_path / "root" / "sys" / "class" / "block"
    block.mkdir(parents=True)
    (block / "sdb1").symlink_to(real)
    mounts = (Mount("/dev/sdb1", tmp_path, "ext4"),)
    said = found(disk.check_place, look(tmp_path, mounts=mounts))["warning disk place"]
    assert "external" in said.text
    inside = (Mount("/dev/nvme0n1p1", tmp_path, "ext4"),)
    assert found(disk.check_place, look(tmp_path, mounts=inside)) == {}
    mac = Mount("/dev/disk4s1", Path("/Volumes/Stick"), "apfs")
    assert disk._is_external(mac, look(tmp_path, system="darwin"))  # pyright: ignore


@pytest.mark.parametrize(
    ("folder", "mark"),
    [
        ("Dropbox/omlx", ""), ("Dropbox (Work)/a/b", ""), ("OneDrive - ACME/c", ""),
        ("Library/Mobile Documents/com~apple~CloudDocs/c", ""), ("Library/CloudStorage/x/c", ""),
        ("stuff/c", "stuff/.stfolder"),
    ],
)  # fmt: skip
def test_synced_folders(tmp_path: Path, folder: str, mark: str) -> None:
    cache = tmp_path / "ann" / folder
    cache.mkdir(parents=True)
    if mark:
        (tmp_path / "ann" / mark).mkdir()
    on = look(tmp_path, cli={"cache.dir": str(cache)})
    assert "prompts leave this machine" in found(disk.check_place, on)["warning disk place"].text


def test_folders_that_only_sound_synced(tmp_path: Path) -> None:
    for name in ("Boxes", "MEGAbytes", "Dropboxes/c", ".omlx/Dropbox"):
        cache = tmp_path / "ann" / name
        cache.mkdir(parents=True)
        assert found(disk.check_place, look(tmp_path, cli={"cache.dir": str(cache)})) == {}


def test_icloud_takes_documents(tmp_path: Path) -> None:
    cache = tmp_path / "ann" / "Documents" / "c"
    cache.mkdir(parents=True)
    on = look(tmp_path, cli={"cache.dir": str(cache)}, system="darwin")
    assert found(disk.check_place, on) == {}
    (tmp_path / "ann/Library/Mobile Documents/com~apple~CloudDocs/Documents").mkdir(parents=True)
    assert "iCloud" in found(disk.check_place, on)["warning disk place"].text


def test_time_machine(tmp_path: Path) -> None:
    tool = FakeTool({"tmutil isexcluded": Done(0, "[Included] /x\n")})
    on = look(tmp_path, run=tool, system="darwin")
    assert found(disk.check_backups, on) == {}  # there is no cache yet
    on.resolved.cache_dir.mkdir()
    said = found(disk.check_backups, on)["warning backups"]
    assert tool.calls == [f"tmutil isexcluded {on.resolved.cache_dir}"]
    assert said.repair is not None and said.repair() == ""
    assert tool.calls[-1] == f"tmutil addexclusion {on.resolved.cache_dir}"
    tool.answers["tmutil isexcluded"] = Done(0, "[Excluded] /x\n")
    assert "ok backups" in found(disk.check_backups, on)
    assert found(disk.check_backups, look(tmp_path)) == {}


# ---- drive

NVME = {
    "smart_status": {"passed": True},
    "nvme_smart_health_information_log": {"percentage_used": 7, "data_units_written": 2_000_000},
}


def drive(tmp_path: Path, *, rotational: str = "0", smart: Done | None = None) -> Look:
    """A machine whose cache is on /dev/nvme0n1, below a volume."""
    import os

    root = tmp_path / "root"
    disk_dir = root / "sys" / "devices" / "nvme0n1"
    (disk_dir / "queue").mkdir(parents=True)
    (disk_dir / "device").mkdir()
    (disk_dir / "queue" / "rotational").write_text(f"{rotational}\n")
    (disk_dir / "device" / "model").write_text("Fast 9000\n")
    part = disk_dir / "nvme0n1p1"
    part.mkdir()
    (part / "partition").write_text("1\n")
    volume = root / "sys" / "devices" / "dm-0"
    (volume / "slaves").mkdir(parents=True)
    (volume / "slaves" / "nvme0n1p1").symlink_to(part)
    on = look(tmp_path, run=FakeTool({"smartctl": smart or Done(127)}))
    number = on.home.stat().st_dev
    blocks = root / "sys" / "dev" / "block"
    blocks.mkdir(parents=True)
    (blocks / f"{os.major(number)}:{os.minor(number)}").symlink_to(volume)
    return on


def test_a_drive_and_its_wear(tmp_path: Path) -> None:
    said = found(wear.check_drive, drive(tmp_path, smart=Done(0, json.dumps(NVME))))["ok drive"]
    assert said.text == (
        "SSD /dev/nvme0n1 (Fast 9000): 7 % of its life is used, 1.0 TB were written to it"
    )


@pytest.mark.parametrize(
    ("smart", "rotational", "key", "word"),
    [
        (Done(127), "0", "ok drive", "not installed"),
        (Done(2, "Permission denied"), "0", "ok drive", "may not read"),
        (Done(0), "1", "warning drive", "hard disk"),
        (Done(8, json.dumps({"smart_status": {"passed": False}})), "0", "broken drive", "failing"),
        (
            Done(0, json.dumps({"nvme_smart_health_information_log": {"percentage_used": 85}})),
            "0", "warning drive", "nearly worn out",
        ),
        (
            Done(0, json.dumps({"ata_smart_attributes": {"table": [{"id": 231, "value": 3}]}})),
            "0", "warning drive", "97 %",
        ),
    ],
)  # fmt: skip
def test_drives(tmp_path: Path, smart: Done, rotational: str, key: str, word: str) -> None:
    assert (
        word
        in found(wear.check_drive, drive(tmp_path, rotational=rotational, smart=smart))[key].text
    )


def test_a_drive_that_nobody_knows(tmp_path: Path) -> None:
    assert found(wear.check_drive, look(tmp_path)) == {}
    for text in ("", "[]", "{}", '{"smart_status": 5}'):
        assert wear.read_wear(text) is None


def test_a_drive_of_a_mac(tmp_path: Path) -> None:
    info = {"ParentWholeDisk": "disk0", "SolidState": True, "MediaName": "APPLE SSD"}
    tool = FakeTool({
        "diskutil": Done(0, plistlib.dumps(info).decode()),
        "smartctl -j -a /dev/disk0": Done(0, json.dumps(NVME)),
    })  # fmt: skip
    on = look(tmp_path, run=tool, system="darwin")
    assert "SSD /dev/disk0 (APPLE SSD): 7 %" in found(wear.check_drive, on)["ok drive"].text
    tool.answers["diskutil"] = Done(1)
    assert found(wear.check_drive, on) == {}


# ---- keys


def test_keys(tmp_path: Path) -> None:
    on = look(tmp_path)
    assert "everyone on this machine" in found(access.check_keys, on)["ok keys"].text
    on.resolved.keys_path.write_text("")
    on.resolved.keys_path.chmod(0o644)
    assert found(access.check_keys, on)["broken keys"].fix.startswith("chmod 600")
    on.resolved.keys_path.unlink()
    bare = look(tmp_path, cli={"server.host": "0.0.0.0"})
    assert "needs an API key" in found(access.check_keys, bare)["broken keys"].text


def test_an_expired_key(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from omlx.settings.keys import new_key, write_keys

    now = datetime.now(UTC)
    key, _ = new_key("old", now=now, expires=now)
    on = look(tmp_path)
    write_keys(on.resolved.keys_path, [key])
    assert found(access.check_keys, on)["warning keys"].fix == "omlx key revoke old"


def test_what_others_can_read(tmp_path: Path) -> None:
    home = look(tmp_path).home
    config = home / "config.toml"
    config.write_text("[server]\napi_key = 'hush-hush'\n")
    config.chmod(0o644)
    (home / "cache").mkdir(mode=0o755)
    texts = [one.text for one in access.check_privacy(look(tmp_path))]
    assert len(texts) == 2 and str(config) in texts[0] and "cache" in texts[1]
    config.chmod(0o600)
    (home / "cache").chmod(0o700)
    assert found(access.check_privacy, look(tmp_path)) == {}


# ---- services, servers, journal


def test_services(tmp_path: Path) -> None:
    unit = FakeSupervisor(tmp_path / "units" / "omlx.service")
    on = look(tmp_path, supervisor=unit)
    assert found(programs.check_service, on) == {}
    from omlx.launch.service.service import install
    from omlx.launch.service.spec import spec_of

    install(spec_of((), on.resolved, {}), unit)
    unit.now = State(Word.RUNNING, 1)
    assert "ok service" in found(programs.check_service, on)
    unit.now = State(Word.FAILED, None, 7, 1)
    (on.home / "logs" / "service.log").write_text("error: the port is taken\n")
    assert "the port is taken" in found(programs.check_service, on)["broken service"].text
    unit.now = State(Word.STOPPED)
    elsewhere = replace(on, executable="/opt/other/bin/python")
    assert (
        "another installation" in found(programs.check_service, elsewhere)["warning service"].text
    )
    unit.path.write_text(unit.path.read_text() + "Nice=5\n")
    assert "edited by hand" in found(programs.check_service, on)["warning service"].text
    unit.is_absent = True
    assert "nobody supervises" in found(programs.check_service, on)["warning service"].text


def test_state_files_of_nobody_are_removed_when_asked(tmp_path: Path) -> None:
    on = look(tmp_path)
    path = leave_state(on.home, "http://127.0.0.1:1", process_started=5.0)
    said = found(programs.check_servers, on)["warning servers"]
    assert str(path) in said.text and path.exists()
    assert said.repair is not None and said.repair() == "" and not path.exists()
    leave_state(on.home, "http://127.0.0.1:1", version="0.0.1")
    assert found(programs.check_servers, on)["warning servers"].fix == "omlx restart"


def test_the_journal(tmp_path: Path) -> None:
    on = look(tmp_path)
    assert found(programs.check_journal, on) == {}
    on.resolved.journal_path.parent.mkdir(parents=True, exist_ok=True)
    on.resolved.journal_path.write_text("no database at all, but long enough to be taken for one")
    assert "can't be read" in found(programs.check_journal, on)["broken journal"].text
    off = look(tmp_path, cli={"journal.enabled": False})
    assert "warning journal" in found(programs.check_journal, off)


def test_clients(tmp_path: Path) -> None:
    assert (
        found(programs.check_clients, look(tmp_path))["ok clients"].text == "no agent is installed"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pi").write_text("#!/bin/sh\necho 0.0.1\n")
    (folder / "pi").chmod(0o755)
    on = look(tmp_path, env={"HOME": str(tmp_path), "PATH": f"{folder}:/bin:/usr/bin"})
    assert "too old" in found(programs.check_clients, on)["warning clients"].text


# ---- the command


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What all checks together find."""
    findings: list[Finding] = []

    def check_all(on: Look) -> Iterator[Finding]:
        assert on.resolved.home.name == "omlx-home"
        yield from findings

    monkeypatch.setattr(omlx.cli.checks.all, "CHECKS", (check_all,))
    monkeypatch.setattr(software, "ask_mlx", lambda env, library: Done(0, json.dumps(MLX)))
    return findings


def test_the_exit_code_says_whether_something_is_broken(cli: Cli, checks: list[Finding]) -> None:
    checks += [ok("a", "fine"), warning("b", "so so", "do that")]
    outcome = cli("doctor")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "ok      a: fine",
        "warning b: so so",
        "        fix: do that",
        "0 broken, 1 to be looked at",
    ]
    checks.append(Finding("c", Level.BROKEN, "no", "do this"))
    assert cli("doctor").code == 1
    told = json.loads(cli("doctor", "--json").out)
    assert told["is_broken"] is True
    assert [one["level"] for one in told["findings"]] == ["ok", "warning", "broken"]
    assert told["findings"][2]["fix"] == "do this"


def test_fix_does_what_it_can(cli: Cli, checks: list[Finding]) -> None:
    done: list[str] = []

    def repair() -> str:
        done.append("x")
        return ""

    checks += [
        warning("b", "so so", "do that", repair),
        warning("c", "bad", "no", lambda: "may not"),
    ]
    assert cli("doctor").code == 0 and done == []
    outcome = cli("doctor", "--fix")
    assert done == ["x"] and "        fixed\n" in outcome.out
    assert "bad: it can't be fixed: may not" in outcome.err
    told = json.loads(cli("doctor", "--fix", "--json").out)
    assert [one["is_fixed"] for one in told["findings"]] == [True, False]


def test_settings_that_are_wrong_do_not_end_it(cli: Cli, checks: list[Finding], home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[server]\nprot = 1\n[cache]\nmax_size = 'x'\n")
    checks.append(ok("a", "fine"))
    outcome = cli("doctor")
    assert outcome.code == 1
    assert outcome.out.count("broken  settings: ") == 2 and "ok      a: fine" in outcome.out


def test_the_real_checks_of_this_machine_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "ask_mlx", lambda env, library: Done(0, json.dumps(MLX)))
    monkeypatch.setattr(disk, "_BYTES", 4_000_000)
    monkeypatch.setenv("PATH", "")
    outcome = cli("doctor", "--json", "--port", "0")
    told = json.loads(outcome.out)
    assert {"python", "memory", "files", "keys", "clients"} <= {
        one["topic"] for one in told["findings"]
    }
    assert f"omlx {__version__}" in told["findings"][0]["text"]
