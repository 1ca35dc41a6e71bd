"""A model scores continuations and writes them: against whole logits, and across edges of tokens.

Knows nothing about lm-eval; tests/e2e/test_accuracy.py runs that.
"""

import math
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.errors import ModelError
from omlx.models.load import load
from omlx.models.questions import Answerer
from omlx.models.text import TextModel
from tests.fakes import tiny
from tests.unit.models.tiny import text_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.save(tiny.build(), path, tiny.CONFIGS["llama"])
    return text_folder(path, config=tiny.CONFIGS["llama"])


def by_hand(folder: Path, ids: list[int], first: int) -> float:
    logits = load(folder).model(mx.array([ids[:-1]]))[0].astype(mx.float32)
    log_p = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return sum(float(log_p[at - 1, ids[at]].item()) for at in range(first, len(ids)))


def test_a_score_is_the_sum_of_log_probabilities(folder: Path) -> None:
    ids = TextModel.load(folder).encode("zzzyx")
    score, _ = Answerer(folder).score("zzz", "yx")
    assert score == pytest.approx(by_hand(folder, ids, 3), abs=1e-4)


def test_a_token_across_the_edge_belongs_to_the_continuation(folder: Path) -> None:
    text = TextModel.load(folder)
    assert len(text.encode("z the")) == 2  # "z" and " the" as one
    score, _ = Answerer(folder).score("z t", "he")
    assert score == pytest.approx(by_hand(folder, text.encode("z the"), 1), abs=1e-4)


def test_long_contexts_are_scored_in_pieces(folder: Path) -> None:
    context = "zyx" * 200
    ids = TextModel.load(folder).encode(context + "ab")
    score, _ = Answerer(folder).score(context, "ab")
    assert score == pytest.approx(by_hand(folder, ids, len(ids) - 2), abs=1e-3)


def test_what_is_written_is_the_greedy_continuation(folder: Path) -> None:
    answerer, text = Answerer(folder), TextModel.load(folder)
    written = answerer.write("zzz", [], 5)
    ids = text.encode("zzz")
    for _ in range(5):
        ids.append(int(mx.argmax(load(folder).model(mx.array([ids]))[0, -1]).item()))
    assert written == text.decode(ids[3:])
    score, is_greedy = answerer.score("zzz", text.decode(ids[3:4]))
    if text.encode("zzz" + text.decode(ids[3:4])) == ids[:4]:  # the text spells that one token
        assert is_greedy
    assert math.isfinite(score)


def test_a_stop_text_ends_and_is_left_out(folder: Path) -> None:
    answerer = Answerer(folder)
    whole = answerer.write("zzz", [], 8)
    assert len(whole) > 2
    assert answerer.write("zzz", [whole[2]], 8) == whole[: whole.index(whole[2])]


def test_nothing_to_score_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="fewer than two tokens"):
        Answerer(folder).score("", "z")
