"""What kind of drive the cache is on, and how much of its life is gone.

Knows nothing about the cache. Wear is read with smartctl where that is installed and may.
"""

import json
import os
import plistlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from xml.parsers.expat import ExpatError

from omlx.cli.checks.disk import nearest
from omlx.cli.checks.finding import Finding, Look, broken, ok, warning
from omlx.units import format_size

_ASK_S = 20.0
_WORN, _NEARLY = 100, 80  # percent of what its maker says
_UNIT = 512_000  # bytes; NVMe counts in thousands of 512
_LIFE_LEFT = (231, 233, 202, 177, 169)  # attributes of ATA drives that count down from 100
_LESS = "set cache.max_write_per_day, and keep backups"


@dataclass(frozen=True, slots=True)
class Drive:
    """A drive; `is_ssd` is None where that is not known."""

    device: str
    model: str = ""
    is_ssd: bool | None = None


@dataclass(frozen=True, slots=True)
class Wear:
    """What a drive says of itself; None where it does not."""

    percent: int | None = None
    written_bytes: int | None = None
    is_failing: bool = False


def check_drive(look: Look) -> Iterator[Finding]:
    """The kind of drive, and its wear."""
    folder = nearest(look.resolved.cache_dir)
    drive = _mac_drive(folder, look) if look.system == "darwin" else _linux_drive(folder, look)
    if drive is None:
        return
    kind = {True: "SSD", False: "hard disk", None: "drive"}[drive.is_ssd]
    name = f"{kind} {drive.device}{f' ({drive.model})' if drive.model else ''}"
    if drive.is_ssd is False:
        yield warning("drive", f"{name}: it reads slower than many models compute",
                      "omlx config set cache.dir DIR, on an SSD")  # fmt: skip
        return
    done = look.run(["smartctl", "-j", "-a", drive.device], _ASK_S)
    wear = read_wear(done.out)
    if wear is None:
        why = "smartctl is not installed" if done.code == 127 else "smartctl may not read it"
        yield ok("drive", f"{name}; its wear is not known ({why})")
    elif wear.is_failing:
        yield broken(
            "drive", f"{name} says that it is failing", "copy what you need, and replace it"
        )
    elif wear.percent is not None and wear.percent >= _NEARLY:
        word = "is worn out" if wear.percent >= _WORN else "is nearly worn out"
        yield warning("drive", f"{name} {word}: {_words(wear)}", _LESS)
    else:
        yield ok("drive", f"{name}: {_words(wear)}")


def _words(wear: Wear) -> str:
    said = [] if wear.percent is None else [f"{wear.percent} % of its life is used"]
    if wear.written_bytes is not None:
        said.append(f"{format_size(wear.written_bytes)} were written to it")
    return ", ".join(said) or "healthy"


def read_wear(text: str) -> Wear | None:
    """What `smartctl -j -a` printed; None where there is nothing of use in it."""
    try:
        tree: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(tree, dict):
        return None
    found = cast(dict[str, Any], tree)
    status = _table(found, "smart_status").get("passed")
    nvme = _table(found, "nvme_smart_health_information_log")
    units = nvme.get("data_units_written")
    percent = nvme.get("percentage_used")
    if not isinstance(percent, int):
        percent = _ata_percent(_table(found, "ata_smart_attributes"))
    written = units * _UNIT if isinstance(units, int) else None
    if percent is None and written is None and not isinstance(status, bool):
        return None
    return Wear(percent, written, status is False)


def _ata_percent(attributes: Mapping[str, Any]) -> int | None:
    rows = attributes.get("table")
    for row in cast(list[object], rows) if isinstance(rows, list) else []:
        if isinstance(row, dict):
            one = cast(dict[str, Any], row)
            value = one.get("value")
            if one.get("id") in _LIFE_LEFT and isinstance(value, int):
                return max(0, 100 - value)
    return None


def _table(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = tree.get(key)
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _linux_drive(folder: Path, look: Look) -> Drive | None:
    """The whole drive below a file system, below encryption and volumes as well."""
    number = folder.stat().st_dev
    block = look.root / "sys" / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    if not block.exists():  # a file system of several parts, such as btrfs or an overlay
        from omlx.cli.checks.disk import mount_of

        mount = mount_of(folder, look)
        block = look.root / "sys" / "class" / "block" / Path(mount.device).name if mount else block
    try:
        real = block.resolve(strict=True)
        while below := sorted((real / "slaves").glob("*")):
            real = below[0].resolve(strict=True)
        whole = real.parent if (real / "partition").exists() else real
        is_ssd = (whole / "queue" / "rotational").read_text().strip() == "0"
    except OSError:
        return None
    model = whole / "device" / "model"
    name = model.read_text(errors="replace").strip() if model.is_file() else ""
    is_virtual = whole.name.startswith(("vd", "loop", "zram", "ram"))
    return Drive(f"/dev/{whole.name}", name, None if is_virtual else is_ssd)


def _mac_drive(folder: Path, look: Look) -> Drive | None:
    done = look.run(["diskutil", "info", "-plist", str(folder)], _ASK_S)
    try:
        tree: object = plistlib.loads(done.out.encode())
    except (plistlib.InvalidFileException, ExpatError, ValueError, LookupError):
        return None
    if not isinstance(tree, dict):
        return None
    found = cast(dict[str, Any], tree)
    device = found.get("ParentWholeDisk") or found.get("DeviceIdentifier")
    is_ssd = found.get("SolidState")
    if not isinstance(device, str):
        return None
    name = found.get("MediaName")
    return Drive(
        f"/dev/{device}",
        name if isinstance(name, str) else "",
        is_ssd if isinstance(is_ssd, bool) else None,
    )


CHECKS = (check_drive,)
