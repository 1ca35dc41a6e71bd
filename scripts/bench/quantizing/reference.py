"""The reference of a comparison: a model, dithered or not, its logits on held-out text, and how
near other models come to them."""

import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np

from omlx.bench.accuracy import held_out_texts
from omlx.models import agreement, corpus
from omlx.models.agreement import Recording
from omlx.models.corpus import Context, Source
from omlx.models.load import load

_CONTEXT = 512


def dithered(source: Path, target: Path, seed: int) -> Path:
    """The model with every matrix moved by up to half a step of its grid of four bits."""
    shutil.copytree(source, target)
    weights = mx.load(str(source / "model.safetensors"))
    rng = np.random.default_rng(seed)
    for name, array in weights.items():
        if array.ndim == 2:
            groups = np.array(array).reshape(-1, 32)
            width = groups.max(axis=1, keepdims=True) - groups.min(axis=1, keepdims=True)
            noise = rng.uniform(-0.5, 0.5, groups.shape).astype(np.float32) * (width / 15)
            weights[name] = mx.array((groups + noise).reshape(array.shape))
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
    return target


class Judge:
    """A reference's logits on the held-out text, kept in a file that processes share."""

    def __init__(self, reference: Path, folder: Path, tokens: int) -> None:
        sources = [Source(name, path) for name, path in held_out_texts()]
        self._contexts: list[Context] = corpus.contexts(
            reference, sources, max_tokens=tokens, context=_CONTEXT
        )
        self._reference = reference
        self._file = folder / "logits"

    def record(self) -> float:
        """Write the file; the reference's own perplexity."""
        self._file.unlink(missing_ok=True)  # of a run that was broken off
        model = agreement.in_float32(load(self._reference).model)
        found = agreement.windows(model, self._contexts)
        return agreement.perplexity(
            agreement.score(agreement.record(found, self._contexts, self._file))
        )

    def judged(self, path: Path) -> dict[str, float]:
        """KL(reference || model) in nats a token and its standard error over contexts, perplexity,
        top-1 agreement, and the bytes of the weights."""
        model = agreement.in_float32(load(path).model)
        with Recording(self._file, self._contexts) as reference:
            scores = agreement.score(agreement.windows(model, self._contexts), reference)
        means = [float(scores.of_context(idx).kl.mean()) for idx in range(len(self._contexts))]
        return {
            "kl": float(scores.kl.mean()),
            "kl_error": float(np.std(means, ddof=1) / len(means) ** 0.5),
            "perplexity": agreement.perplexity(scores),
            "top1": float(scores.agrees.mean()),
            "bytes": float(weight_bytes(path)),
        }


def weight_bytes(path: Path) -> int:
    """Bytes of all tensors of a model's folder."""
    files = path.glob("*.safetensors")
    return sum(array.nbytes for file in files for array in mx.load(str(file)).values())
