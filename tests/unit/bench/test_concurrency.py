"""Rates of streams that run side by side, and what bounds them."""

import json
import struct
from pathlib import Path

import pytest

from omlx.bench.bandwidth import Bandwidth, bound
from omlx.bench.client import Answer
from omlx.bench.concurrency import together_rate, whole_rate
from omlx.errors import ModelError
from omlx.models.weights import StepWeights, step_weights


def _answer(sent: float, first: float, gaps: tuple[float, ...], tokens: int | None) -> Answer:
    return Answer(
        sent=sent, connect_s=0.0, headers_s=0.0, first_s=first, gaps_s=gaps,
        end_s=first + sum(gaps), text="", reasoning="", tool_calls="", finish="length",
        prompt_tokens=8, cached_tokens=0, completion_tokens=tokens, num_keep_alives=0, num_empty=0,
    )  # fmt: skip


def test_only_the_time_in_which_all_decode_counts() -> None:
    # One stream says a token each second from 1 to 11, the other from 5 to 15.
    first = _answer(0.0, 1.0, (1.0,) * 10, 11)
    second = _answer(0.0, 5.0, (1.0,) * 10, 11)
    assert together_rate([first, second]) == pytest.approx(2.0)
    assert whole_rate([first, second]) == pytest.approx(22 / 15)


def test_one_stream_alone_is_its_own_rate() -> None:
    one = _answer(3.0, 1.0, (0.5,) * 8, 9)
    assert together_rate([one]) == pytest.approx(2.0)
    assert one.decode_tokens_per_s == pytest.approx(2.0)


def test_events_of_several_tokens_count_as_so_many() -> None:
    coalesced = _answer(0.0, 1.0, (1.0,) * 4, 10)  # five events of two tokens
    assert together_rate([coalesced]) == pytest.approx(2.0)


def test_streams_that_never_meet_have_no_rate_together() -> None:
    assert together_rate([_answer(0.0, 1.0, (1.0,), 2), _answer(0.0, 9.0, (1.0,), 2)]) is None
    assert together_rate([_answer(0.0, 1.0, (), 1)]) is None


def test_the_bound_of_a_dense_model_grows_with_its_rows() -> None:
    rate = Bandwidth(matvec=100.0, total=80.0, device="cpu")
    weights = StepWeights(50)
    assert bound(weights, rate, num_rows=1) == pytest.approx(2.0)
    assert bound(weights, rate, num_rows=8) == pytest.approx(16.0)


def test_experts_count_as_far_as_rows_take_them() -> None:
    weights = StepWeights(100, 800, num_experts=8, experts_per_token=2)
    assert weights.bytes_of(1) == pytest.approx(100 + 200)
    assert weights.bytes_of(2) == pytest.approx(100 + 800 * (1 - 0.75**2))
    assert weights.bytes_of(1000) == pytest.approx(900)


def _write(folder: Path, config: dict[str, object], **tensors: int) -> Path:
    """A model folder whose file holds tensors of so many bytes; `__` in a name stands for a dot."""
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, size in tensors.items():
        header[name.replace("__", ".")] = {
            "dtype": "U8", "shape": [size], "data_offsets": [at, at + size]
        }  # fmt: skip
        at += size
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * at)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_table_of_embeddings_is_read_only_where_it_is_the_output(tmp_path: Path) -> None:
    tensors = {"model__embed_tokens__weight": 100, "model__layers__0__mlp__weight": 10}
    tied = step_weights(_write(tmp_path, {}, **tensors))
    assert tied == StepWeights(110)
    untied = step_weights(_write(tmp_path, {}, **tensors, lm_head__weight=100))
    assert untied == StepWeights(110)


def test_experts_are_told_apart(tmp_path: Path) -> None:
    config = {"text_config": {"num_experts": 4, "num_experts_per_tok": 2}}
    tensors = {"l__0__mlp__switch_mlp__up__weight": 40, "l__0__mlp__gate__weight": 4}
    assert step_weights(_write(tmp_path, config, **tensors)) == StepWeights(4, 40, 4, 2)
    assert step_weights(_write(tmp_path, {}, **tensors)) == StepWeights(44)


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 4, struct.pack("<Q", 1 << 40), struct.pack("<Q", 2) + b"[]",
            struct.pack("<Q", 9) + b'{"a": {}}', struct.pack("<Q", 3) + b"{x}"],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, raw: bytes) -> None:
    _write(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        step_weights(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no safetensors"):
        step_weights(tmp_path)
