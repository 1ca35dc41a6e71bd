"""The child's side of a task that runs in a process of its own: what comes in, what goes out.

Knows nothing about what tasks do. One JSON object comes in on stdin; lines of JSON go out on
stdout: any number of {"progress": [done, total, "stage"]}, then {"result": ...} or {"error": ...}.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import cast

from omlx.errors import OmlxError

OnProgress = Callable[[int, int, str], None]
Task = Callable[[Mapping[str, object], OnProgress], Mapping[str, object]]


def run_as_main(task: Task) -> int:
    """Run a task as this process's main function, and return its exit code."""
    # Libraries that print must not spoil the lines: they get stderr.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        def send(message: Mapping[str, object]) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        try:
            spec = cast(Mapping[str, object], json.load(sys.stdin))
            result = task(spec, lambda done, total, stage: send({"progress": [done, total, stage]}))
            send({"result": result})
        except OmlxError as error:
            send({"error": {"message": error.message, "hint": error.hint}})
            return 1
        except BrokenPipeError:  # whoever started it is gone
            return 1
    return 0
