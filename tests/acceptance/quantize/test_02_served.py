"""Point 2: the result is a model for plain mlx_lm.load and omlx serve, of the size asked for."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import generate, load

from tests.acceptance.conftest import Figure
from tests.live import Live, chat, run_omlx

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model at 4 bits, with scales that a CPU is fast with."""
    from tests.models import demo_model

    home = tmp_path_factory.mktemp("home")
    out = home / "models" / "demo-4bit"
    args = ["--bits", "4.0", "--dtype", "float16", "--calibration-tokens", "2048"]
    done = run_omlx("quantize", str(demo_model()), "-o", str(out), *args, home=home, timeout_s=1700)
    assert done.returncode == 0, done.stderr
    return out


def test_the_size_is_the_one_asked_for(made: Path, figure: Figure) -> None:
    arrays = mx.load(str(made / "model.safetensors"))
    size = sum(array.nbytes for array in arrays.values())
    bits = size * 8 / 134_515_008
    figure(f"4.0 bits asked for, {bits:.3f} made")
    assert 3.96 <= bits <= 4.0


def test_plain_mlx_lm_answers_with_it(made: Path, figure: Figure) -> None:
    model, tokenizer = load(str(made))
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    text = generate(model, tokenizer, prompt, max_tokens=12)
    figure(f"mlx_lm: {text.strip()!r}")
    assert "Paris" in text


def test_omlx_serves_it(made: Path, figure: Figure) -> None:
    with Live("--model-dir", str(made.parent), home=made.parent.parent) as server:
        body = chat(made.name, QUESTION[0]["content"], max_tokens=12)
        status, answer = server.post("/v1/chat/completions", body)
        assert status == 200
        assert server.stop() == 0
    text = answer["choices"][0]["message"]["content"]
    figure(f"omlx serve: {text.strip()!r}")
    assert "Paris" in text
