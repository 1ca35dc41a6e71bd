"""The estimate of a model's state against what its caches really hold, in ten architectures."""

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from omlx.models.footprint import State, state_of
from tests.fakes import tiny

# qwen3_next and lfm2 say by a default of mlx-lm's which layers are which; real ones say it.
SAID = {"qwen3_next": {"full_attention_interval": 4}}
# Of windows and of layers that keep no tokens, mlx holds a little more than is needed.
SLACK = 1.15


def held_bytes(name: str, num_tokens: int) -> int:
    """What the caches of attention hold after a prompt, without what they keep in reserve."""
    model = tiny.build(name)
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[1] * num_tokens]), cache=caches))
    total = 0
    for cache in caches:
        for one in getattr(cache, "caches", [cache]):
            keys = getattr(one, "keys", None)
            if keys is None:
                continue
            held = keys.shape[2]
            share = min(held, num_tokens) / held
            arrays: list[Any] = [a for _, a in tree_flatten([keys, one.values])]
            total += round(sum(a.nbytes for a in arrays) * share)
    return total


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
@pytest.mark.parametrize("num_tokens", [256, 512])
def test_against_real_caches(name: str, num_tokens: int) -> None:
    config = {**tiny.CONFIGS[name], **SAID.get(name, {})}
    state = state_of(config, "float32")
    assert state is not None
    real, said = held_bytes(name, num_tokens), state.bytes_of(num_tokens)
    if not real:
        assert said == 0
        return
    # A window's ring holds the last chunk, too: here the whole prompt.
    if state.window:
        said = num_tokens * (state.token_bytes + state.window_token_bytes)
    assert real <= said * SLACK and said <= real * SLACK


def test_windows_end() -> None:
    state = State(token_bytes=10, window_token_bytes=30, window=100)
    assert [state.bytes_of(n) for n in (0, 50, 100, 200)] == [0, 2000, 4000, 5000]
    for num_tokens in (0, 1, 50, 99, 100, 101, 5000):
        found = state.tokens_in(state.bytes_of(num_tokens))
        assert found == num_tokens
    assert state.tokens_in(-1) == 0
    assert State(0).tokens_in(1) is None
    assert State(0, 10, 5).tokens_in(49) == 0


@pytest.mark.parametrize(
    ("config", "token_bytes", "window"),
    [
        ({"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
          "head_dim": 128}, 147_456, 0),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}, 512, 0),
        ({"text_config": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}},
         512, 0),
        ({"num_hidden_layers": 4, "num_attention_heads": 1, "head_dim": 8, "sliding_window": 16,
          "layer_types": ["full_attention", "sliding_attention"] * 2}, 64, 16),
        ({"num_hidden_layers": 4, "num_attention_heads": 1, "head_dim": 8,
          "layer_types": ["full_attention", "linear_attention"] * 2}, 64, 0),
        ({"num_hidden_layers": 3, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 3456, 0),
    ],
)  # fmt: skip
def test_shapes(config: dict[str, object], token_bytes: int, window: int) -> None:
    state = state_of(config, "bfloat16")
    assert state is not None
    assert (state.token_bytes, state.window) == (token_bytes, window)


@pytest.mark.parametrize(
    "config",
    [{}, {"num_hidden_layers": 2}, {"num_hidden_layers": "x", "num_attention_heads": 1},
     {"num_hidden_layers": 2, "num_attention_heads": 2}, {"num_hidden_layers": -1, "head_dim": 1}],
)  # fmt: skip
def test_configurations_that_do_not_say(config: dict[str, object]) -> None:
    assert state_of(config, None) is None
