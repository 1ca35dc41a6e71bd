"""A task of its own process: one model's predictions on texts, recorded or compared.

Knows nothing about which models are compared, or how results are shown.
"""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np

from omlx.errors import ModelError
from omlx.models import agreement, corpus
from omlx.models.agreement import Recording, Scores
from omlx.models.corpus import Context, Source
from omlx.models.load import load
from omlx.models.task import OnProgress, run_as_main
from omlx.units import format_size

_mx: Any = mx


def measure(spec: Mapping[str, object], progress: OnProgress) -> dict[str, object]:
    """Score one model as `spec` says; the scores of each context and of each text.

    Keys of `spec`: model, texts ([name, path] each), tokens, context, window (or None), record
    (the file to keep the logits in, or None), against (such a file, or None), float32 (whether the
    model is computed in float32: None means, on a CPU).
    """
    model_path = Path(str(spec["model"]))
    sources = [Source(str(n), Path(str(p))) for n, p in cast(list[list[str]], spec["texts"])]
    contexts = corpus.contexts(
        model_path,
        sources,
        max_tokens=cast(int, spec["tokens"]),
        context=cast(int, spec["context"]),
    )
    loaded = load(model_path)
    is_wide = spec.get("float32")
    if is_wide is None:
        is_wide = _mx.default_device() == _mx.Device(_mx.cpu)
    model = agreement.in_float32(loaded.model) if is_wide else loaded.model
    stage = str(spec.get("stage", "measure"))
    found = agreement.windows(
        model,
        contexts,
        window=cast("int | None", spec.get("window")),
        progress=lambda done, total: progress(done, total, stage),
    )
    if spec.get("record") is not None:
        target = Path(str(spec["record"]))
        _check_room(target, agreement.recorded_bytes(contexts, loaded.num_vocab))
        found = agreement.record(found, contexts, target)
    against = spec.get("against")
    with nullcontext() if against is None else Recording(Path(str(against)), contexts) as reference:
        scores = agreement.score(found, reference, name=str(model_path))
    return {
        "num_vocab": loaded.num_vocab,
        "weight_bytes": loaded.weight_bytes,
        "float32": bool(is_wide),
        "device": str(_mx.default_device()),
        "tokens": len(scores.loss),
        "overall": summary(scores),
        "texts": {source.name: _of_source(scores, contexts, source.name) for source in sources},
        "contexts": list(_by_context(scores, contexts)),
    }


def summary(scores: Scores) -> dict[str, float]:
    """Means over tokens, in nats; of KL also what 99 of 100 tokens stay below, and the most."""
    found: dict[str, float] = {
        "loss": float(scores.loss.mean()),
        "perplexity": agreement.perplexity(scores),
    }
    if len(scores.kl):
        found |= {
            "kl": float(scores.kl.mean()),
            "kl_p99": float(np.percentile(scores.kl, 99)),
            "kl_max": float(scores.kl.max()),
            "reverse_kl": float(scores.reverse_kl.mean()),
            "top1": float(scores.agrees.mean()),
        }
    return found


def _of_source(scores: Scores, contexts: Sequence[Context], name: str) -> dict[str, float]:
    wanted = [idx for idx, one in enumerate(contexts) if one.source == name]
    here = np.isin(scores.context_idx, wanted)
    columns = (scores.loss, scores.kl, scores.reverse_kl, scores.agrees)
    cut = [column[here] if len(column) else column for column in columns]
    return {"tokens": float(here.sum()), **summary(Scores(scores.context_idx[here], *cut))}


def _by_context(scores: Scores, contexts: Sequence[Context]) -> Iterator[dict[str, object]]:
    for idx, one in enumerate(contexts):
        yield {"text": one.source, "tokens": one.num_predicted, **summary(scores.of_context(idx))}


def _check_room(target: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        raise ModelError(
            f"the reference's logits need {format_size(num_bytes)} in {target.parent},"
            f" where {format_size(free)} are free",
            hint="Give fewer --tokens, or point TMPDIR at a larger disk.",
        )


if __name__ == "__main__":
    sys.exit(run_as_main(measure))
