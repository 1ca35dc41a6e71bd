"""Two models' predictions compared: against numpy, against themselves, window by window.

Knows nothing about files of text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from omlx.errors import ModelError
from omlx.models.agreement import (
    Recording,
    Scores,
    in_float32,
    perplexity,
    record,
    recorded_bytes,
    score,
    windows,
)
from omlx.models.corpus import Context
from tests.fakes import tiny

KINDS = ("llama", "gemma3_text", "qwen3_next", "deepseek_v3")


def some(*lengths: int, seed: int = 0) -> list[Context]:
    rng = np.random.default_rng(seed)
    return [
        Context("prose", tuple(int(t) for t in rng.integers(3, tiny.NUM_VOCAB, length)))
        for length in lengths
    ]


def compared(
    model: Any,
    reference: Any,
    contexts: Sequence[Context],
    folder: Path,
    *,
    window: int | None = None,
) -> Scores:
    """The model's scores against a reference's recording."""
    path = folder / "logits"
    path.unlink(missing_ok=True)
    score(record(windows(reference, contexts, window=window), contexts, path))
    with Recording(path, contexts) as recording:
        return score(windows(model, contexts, window=window), recording)


def shaken(model: Any, by: float) -> Any:
    """The same model with one matrix a little off (mutates it)."""
    layer = model.layers[0].self_attn.o_proj
    layer.weight = layer.weight + by * mx.random.normal(layer.weight.shape, key=mx.random.key(3))
    mx.eval(layer.weight)
    return model


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_a_model_agrees_with_itself_exactly(tmp_path: Path, dtype: mx.Dtype) -> None:
    model = tiny.build(dtype=dtype)
    scores = compared(model, model, some(70, 33), tmp_path)
    assert len(scores.kl) == 101
    assert (scores.kl == 0).all()
    assert (scores.reverse_kl == 0).all()
    assert scores.agrees.mean() == 1.0
    assert recorded_bytes(some(70, 33), tiny.NUM_VOCAB) >= (tmp_path / "logits").stat().st_size


def test_the_further_off_the_less_it_agrees(tmp_path: Path) -> None:
    contexts = some(96)
    found = [
        compared(shaken(tiny.build(), by), tiny.build(), contexts, tmp_path)
        for by in (0.01, 0.1, 1.0)
    ]
    means = [float(one.kl.mean()) for one in found]
    assert 0 < means[0] < means[1] < means[2]
    assert found[2].agrees.mean() < 1.0
    assert (found[2].reverse_kl > 0).all()


def test_figures_are_those_of_the_definition(tmp_path: Path) -> None:
    """Against float64, from logits of whole contexts."""
    model, reference, contexts = shaken(tiny.build(), 0.3), tiny.build(), some(40)
    scores = compared(model, reference, contexts, tmp_path)
    inputs = mx.array([list(contexts[0].tokens[:-1])])
    q, p = (np.array(one(inputs)[0]).astype(np.float64) for one in (model, reference))
    log_q, log_p = (one - np.log(np.exp(one).sum(axis=1, keepdims=True)) for one in (q, p))
    targets = np.array(contexts[0].tokens[1:])
    loss = -log_q[np.arange(len(targets)), targets]
    assert np.allclose(scores.loss, loss, atol=1e-5)
    assert np.allclose(scores.kl, (np.exp(log_p) * (log_p - log_q)).sum(axis=1), atol=1e-5)
    assert np.allclose(scores.reverse_kl, (np.exp(log_q) * (log_q - log_p)).sum(axis=1), atol=1e-5)
    assert (scores.agrees == (log_p.argmax(axis=1) == log_q.argmax(axis=1))).all()
    assert perplexity(scores) == pytest.approx(float(np.exp(loss.mean())), abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 7, 64])
def test_windows_change_nothing(tmp_path: Path, kind: str, window: int) -> None:
    model, reference, contexts = tiny.build(kind, seed=1), tiny.build(kind), some(50, 21)
    whole = compared(model, reference, contexts, tmp_path, window=10**6)
    cut = compared(model, reference, contexts, tmp_path, window=window)
    for name in ("loss", "kl", "reverse_kl", "agrees"):
        difference = getattr(whole, name).mean() - getattr(cut, name).mean()
        assert abs(difference) < 1e-6, name


def test_progress_counts_predicted_tokens() -> None:
    seen: list[tuple[int, int]] = []
    for _ in windows(
        tiny.build(), some(9, 5), window=3, progress=lambda done, total: seen.append((done, total))
    ):
        pass
    assert seen == [(3, 12), (6, 12), (8, 12), (11, 12), (12, 12)]


def test_contexts_are_told_apart(tmp_path: Path) -> None:
    scores = compared(shaken(tiny.build(), 0.3), tiny.build(), some(20, 31), tmp_path)
    first, second = scores.of_context(0), scores.of_context(1)
    assert (len(first.loss), len(second.kl)) == (19, 30)
    assert np.concatenate([first.kl, second.kl]).tolist() == scores.kl.tolist()
    alone = score(windows(tiny.build(), some(20, 31)))
    assert len(alone.of_context(1).loss) == 30
    assert not len(alone.of_context(1).kl)


def test_packed_weights_keep_their_values_in_float32(tmp_path: Path) -> None:
    model = tiny.build()
    nn.quantize(model, group_size=32, bits=4)
    contexts = some(40)
    packed = score(windows(model, contexts))
    wide = in_float32(model)
    assert not any("scales" in layer for _, layer in wide.named_modules())
    assert np.allclose(packed.loss, score(windows(wide, contexts)).loss, atol=1e-4)


def test_a_reference_with_other_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="other tokens of the same text"):
        score(record(windows(tiny.build(), some(9)), some(9), tmp_path / "a"))
        Recording(tmp_path / "a", some(9, seed=1))


def test_a_reference_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    contexts = [Context("prose", (5, 6, 7, 8))]
    score(record(windows(tiny.build(), contexts), contexts, tmp_path / "a"))
    other = tiny.build_config({**tiny.CONFIGS["llama"], "vocab_size": 256})
    with (
        Recording(tmp_path / "a", contexts) as recording,
        pytest.raises(ModelError, match="predicts 256 tokens, the reference 512"),
    ):
        score(windows(other, contexts), recording)


def test_damaged_weights_are_said(tmp_path: Path) -> None:
    model = shaken(tiny.build(), float("nan"))
    with pytest.raises(ModelError, match="the model gives logits that are not finite"):
        score(windows(model, some(9)))
