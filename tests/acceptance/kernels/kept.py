"""What was measured on an H200 and is kept: docs/bench/kernels.json and h200-kernels-serve.json.

`scripts/gpu WHEELS python3 scripts/bench/kernels.py --out FILE` makes the first on such a machine,
`scripts/gpu WHEELS python3 scripts/bench/gpu_kernels_serve.py TOKENIZER_DIR --out FILE` the other.
"""

import json
from typing import Any

from tests.live import REPOSITORY

KEPT = REPOSITORY / "docs" / "bench" / "kernels.json"
SERVED = REPOSITORY / "docs" / "bench" / "h200-kernels-serve.json"


def result() -> Any:
    """The whole document about kernels."""
    return json.loads(KEPT.read_text())


def served() -> Any:
    """The whole document about models that are served."""
    return json.loads(SERVED.read_text())


def row(rows: list[Any], **wanted: Any) -> Any:
    """The one row that has these values."""
    (found,) = [one for one in rows if all(one[name] == value for name, value in wanted.items())]
    return found
