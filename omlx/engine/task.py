"""Runs a task in a fresh process that has the BLAS of an engine, and hears how far it is.

Knows nothing about what tasks do; what is said on the pipes is described in models/task.py.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

from omlx.engine.blas import preload_library, with_preload
from omlx.engine.heap import with_one_heap
from omlx.errors import EngineError, ModelError

OnProgress = Callable[[int, int, str], None]
_GRACE_S = 5.0
_SHOWN = 600  # characters of what a process that broke said last


def run_task(
    module: str,
    spec: Mapping[str, object],
    *,
    blas: str = "auto",
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """The result of `python -m module`, given `spec` on stdin.

    ModelError for what the task refused, EngineError where its process died. The process never
    outlives the call, however that ends.
    """
    env = with_one_heap(with_preload(os.environ, preload_library(blas)))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=env,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends it
        )
        try:
            last = _converse(process, spec, progress)
            code = process.wait()
        finally:
            _end(process)
        if "error" in last:
            raise ModelError(last["error"]["message"], hint=last["error"]["hint"])
        if "result" not in last:
            raise EngineError(f"{module} ended with exit code {code}{_last_words(said)}")
        return cast(dict[str, Any], last["result"])


def _converse(
    process: subprocess.Popen[str], spec: Mapping[str, object], progress: OnProgress | None
) -> dict[str, Any]:
    """Send the spec and read to the end; the last message, empty if there was none."""
    assert process.stdin is not None and process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(spec))
    except BrokenPipeError:
        return {}
    message: dict[str, Any] = {}
    for line in process.stdout:
        message = json.loads(line)
        if "progress" in message and progress is not None:
            done, total, stage = message["progress"]
            progress(done, total, stage)
    return message


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _last_words(said: IO[str]) -> str:
    said.seek(0)
    text = said.read().strip()[-_SHOWN:]
    return f": {text}" if text else ""
