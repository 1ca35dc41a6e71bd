"""Runs tests in a process of their own and tells what became of each."""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def outcomes(arguments: Sequence[str], *, timeout_s: float) -> dict[str, str]:
    """By "file::test": passed, failed, error or skipped; fails if pytest could not run."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}"]
        done = subprocess.run(
            [*command, *arguments], cwd=ROOT, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
        found: dict[str, str] = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            found[name] = kinds[0] if kinds else "passed"
        return found
