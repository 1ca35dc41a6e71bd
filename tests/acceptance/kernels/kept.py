"""What was measured on an H200 and is kept: docs/bench/kernels.json.

`scripts/gpu WHEELS python3 scripts/bench/kernels.py --out FILE` makes it on such a machine.
"""

import json
from typing import Any

from tests.live import REPOSITORY

KEPT = REPOSITORY / "docs" / "bench" / "kernels.json"


def result() -> Any:
    """The whole document."""
    return json.loads(KEPT.read_text())


def row(rows: list[Any], **wanted: Any) -> Any:
    """The one row that has these values."""
    (found,) = [one for one in rows if all(one[name] == value for name, value in wanted.items())]
    return found
