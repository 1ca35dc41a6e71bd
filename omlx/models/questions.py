"""A task of its own process: a model answers multiple-choice questions and goes on with code.

Scored by lm-eval, whose tasks are made here from the questions, so that nothing is fetched. Knows
nothing about files of questions, and runs no code.
"""

# What mlx's stubs, mlx-lm and lm-eval leave untyped.
# pyright: basic

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from omlx.errors import ModelError
from omlx.models import agreement
from omlx.models.corpus import prefix_ids
from omlx.models.load import load
from omlx.models.task import OnProgress, run_as_main
from omlx.models.text import TextModel

_mx: Any = mx
_CHUNK = 256


class Answerer:
    """One model that scores continuations and writes them, greedily."""

    def __init__(self, path: Path, *, is_wide: bool | None = None) -> None:
        loaded = load(path)
        if is_wide is None:
            is_wide = _mx.default_device() == _mx.Device(_mx.cpu)
        self._model = agreement.in_float32(loaded.model) if is_wide else loaded.model
        self._text = TextModel.load(path)
        self._first = list(prefix_ids(path))

    def score(self, context: str, continuation: str) -> tuple[float, bool]:
        """The log probability (nats) of a continuation, and whether it is the greedy one."""
        before, whole = self._ids(context), self._ids(context + continuation)
        # Tokens across the edge belong to the continuation.
        num_same = next(
            (i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b),
            min(len(before), len(whole)),
        )
        start = max(1, min(num_same, len(whole) - 1))
        if len(whole) < 2:
            raise ModelError("a question and its choice make fewer than two tokens")
        logits = self._logits(whole[:-1], first=start - 1)
        log_p = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        targets = mx.array(whole[start:])
        chosen = mx.take_along_axis(log_p, targets[:, None], axis=-1)[:, 0]
        is_greedy = mx.all(mx.argmax(log_p, axis=-1) == targets)
        return float(cast(float, mx.sum(chosen).item())), bool(is_greedy.item())

    def write(self, context: str, stop: Sequence[str], max_tokens: int) -> str:
        """What the model writes after a context, up to a stop text or its end token."""
        caches = make_prompt_cache(self._model)
        ids = self._ids(context) or [0]
        logits = mx.zeros((1,))
        for at in range(0, len(ids), _CHUNK):
            logits = self._model(mx.array([ids[at : at + _CHUNK]]), cache=caches)[0, -1]
            _mx.eval(logits, [cache.state for cache in caches])
        written: list[int] = []
        text = ""
        for _ in range(max_tokens):
            token = int(cast(int, mx.argmax(logits).item()))
            if token in self._text.eos_ids:
                break
            written.append(token)
            text = self._text.decode(written)
            ends = [at for one in stop if (at := text.find(one)) >= 0]
            if ends:
                return text[: min(ends)]
            logits = self._model(mx.array([[token]]), cache=caches)[0, -1]
        return text

    def _ids(self, text: str) -> list[int]:
        return [*self._first, *self._text.encode(text)]

    def _logits(self, ids: Sequence[int], *, first: int) -> mx.array:
        """Logits in float32 from position `first` on."""
        caches = make_prompt_cache(self._model)
        kept: list[mx.array] = []
        for at in range(0, len(ids), _CHUNK):
            piece = list(ids[at : at + _CHUNK])
            logits = self._model(mx.array([piece]), cache=caches)[0].astype(mx.float32)
            kept.append(logits[max(0, first - at) :])
            _mx.eval(kept[-1], [cache.state for cache in caches])
        return mx.concatenate(kept)


def answer(spec: Mapping[str, object], progress: OnProgress) -> dict[str, object]:
    """Answers by kind: which choices are right and their shares, and what was written.

    Keys of `spec`: model; choices ([question, choices, index of the right one] each); codes
    ([prompt, stop texts, most tokens] each).
    """
    answerer = Answerer(Path(str(spec["model"])))
    found: dict[str, object] = {}
    choices = cast(list[list[Any]], spec["choices"])
    if choices:
        found["choices"] = _choices(answerer, choices, progress)
    codes = cast(list[list[Any]], spec["codes"])
    written: list[str] = []
    for prompt, stop, max_tokens in codes:
        progress(len(written), len(codes), "write code")
        written.append(answerer.write(prompt, stop, max_tokens))
    return {**found, "codes": written}


def _choices(
    answerer: Answerer, choices: Sequence[Sequence[Any]], progress: OnProgress
) -> dict[str, object]:
    """The questions as a task of lm-eval."""
    with tempfile.TemporaryDirectory(prefix="omlx-eval-") as folder:
        # Before the import: it must neither fetch nor leave files in the user's folders.
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "HF_DATASETS_CACHE": folder,
            "HF_HOME": folder,
        }
        results = _evaluate(answerer, choices, progress)
    metrics = results["results"]["own"]
    samples = sorted(results["samples"]["own"], key=lambda sample: sample["doc_id"])
    return {
        "right": [bool(sample["acc"]) for sample in samples],
        "accuracy": float(metrics["acc,none"]),
        "accuracy_by_length": float(metrics["acc_norm,none"]),
    }


def _evaluate(
    answerer: Answerer, choices: Sequence[Sequence[Any]], progress: OnProgress
) -> dict[str, Any]:
    import datasets
    from lm_eval import evaluator
    from lm_eval.api.model import LM
    from lm_eval.api.task import ConfigurableTask

    documents: Any = datasets
    lm_class, task_class, run = cast(Any, LM), cast(Any, ConfigurableTask), cast(Any, evaluator)
    rows = [{"question": q, "choices": list(c), "answer": a} for q, c, a in choices]

    def dataset(**_: object) -> Any:
        return {"test": documents.Dataset.from_list(rows)}

    task = task_class(
        config={
            "task": "own",
            "custom_dataset": dataset,
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "question",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "target_delimiter": "",
            "metric_list": [
                {"metric": name, "aggregation": "mean", "higher_is_better": True}
                for name in ("acc", "acc_norm")
            ],
        }
    )
    lm = _lm(lm_class, answerer, progress)
    return run.evaluate(lm=lm, task_dict={"own": task}, bootstrap_iters=0, log_samples=True)


def _lm(lm_class: Any, answerer: Answerer, progress: OnProgress) -> Any:
    """The model in the form that lm-eval asks for."""

    def loglikelihood(_: Any, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = []
        for request in requests:
            progress(len(found), len(requests), "answer questions")
            found.append(answerer.score(*request.args))
        return found

    def unasked(_: Any, requests: Sequence[Any]) -> list[Any]:
        assert not requests, "only choices are scored here"
        return []

    methods: dict[str, Callable[..., Any]] = {
        "loglikelihood": loglikelihood,
        "loglikelihood_rolling": unasked,
        "generate_until": unasked,
    }
    return type("Answers", (lm_class,), dict(methods))()


if __name__ == "__main__":
    sys.exit(run_as_main(answer))
