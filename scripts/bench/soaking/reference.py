#!/usr/bin/env python3
"""What a plain run answers: mlx-lm's own generation, greedy, without any cache between requests.

Knows nothing about servers or blocks. As a script it is the process that computes: one JSON object
a line in, one out.

An answer ends before the first token whose two best logits are closer than rounding can tell apart
in another order of sums, so that whoever computes right gives exactly this text.
"""

import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MIN_GAP = 1e-3  # of logits whose spread is about 1
_CHUNK = 256


@dataclass(frozen=True)
class Reference:
    """The greedy continuation of a prompt; `has_ended` if the end token follows it."""

    tokens: tuple[int, ...]
    has_ended: bool
    is_tie: bool


class ReferenceProcess:
    """Computes and remembers references; any thread may ask."""

    def __init__(self, models: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(models)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()
        self._asked: list[Future[Reference]] = []
        self._known: dict[tuple[str, tuple[int, ...]], Future[Reference]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def num_known(self) -> int:
        """How many prompts were computed."""
        return len(self._known)

    def get(self, model: str, prompt: tuple[int, ...], num_tokens: int) -> Reference:
        """The continuation of a prompt, up to so many tokens; waits for it."""
        assert self._process.stdin is not None
        with self._lock:
            answer = self._known.get((model, prompt))
            if answer is None:
                answer = self._known[model, prompt] = Future()
                self._asked.append(answer)
                question = {"model": model, "prompt": prompt, "num_tokens": num_tokens}
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
        return answer.result()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._lock:
                answer = self._asked.pop(0)
            found = json.loads(line)
            answer.set_result(
                Reference(tuple(found["tokens"]), found["has_ended"], found["is_tie"])
            )
        error = RuntimeError(f"the reference process has ended with {self._process.wait()}")
        with self._lock:
            for answer in self._asked:
                answer.set_exception(error)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(10)
        self._process.stdout.close()


def continue_prompt(model: Any, prompt: list[int], num_tokens: int, eos: set[int]) -> Any:
    """The greedy continuation as a JSON object."""
    import mlx.core as mx
    import numpy as np
    from mlx_lm.generate import generate_step

    tokens: list[int] = []
    steps: Any = generate_step(
        mx.array(prompt), model, max_tokens=num_tokens, prefill_step_size=_CHUNK
    )
    for token, logprobs in steps:
        logits: Any = np.array(logprobs)
        second, first = np.partition(logits, -2)[-2:]
        if first - second < MIN_GAP:
            return {"tokens": tokens, "has_ended": False, "is_tie": True}
        if token in eos:
            return {"tokens": tokens, "has_ended": True, "is_tie": False}
        tokens.append(token)
    return {"tokens": tokens, "has_ended": False, "is_tie": False}


def main() -> None:
    """Answer until there are no more questions."""
    sys.path.insert(0, str(ROOT))
    import mlx_lm.utils

    from omlx.models.text import TextModel

    library: Any = mlx_lm.utils
    folder = Path(sys.argv[1])
    loaded: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["model"]
        if name not in loaded:
            model, _ = library.load_model(folder / name)
            loaded[name] = model, set(TextModel.load(folder / name).eos_ids)
        answer = continue_prompt(loaded[name][0], asked["prompt"], asked["num_tokens"],
                                 loaded[name][1])  # fmt: skip
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
