"""The real demo model: pulled, byte for byte what it should be, and its text side against oracles.

Knows nothing about engines. Uses the models in OMLX_TEST_MODELS, or pulls them once into
~/.cache/omlx-tests.
"""

import hashlib
import os
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from omlx.models.demo import DEMO_ID, is_complete, pull_demo
from omlx.models.gguf import Form
from omlx.models.locate import discover, resolve
from omlx.models.text import TextModel

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

SHA256 = {
    "float32": "7375e354062f14f1a7d6646f21b6c36b716ef6872b5c8da17f3ac9945e55f9da",
    "native": "3ee9994e5edee7d3f003a577a127499e4ee72fadace0412f63bae7cd8220908e",
}
TOKENIZER_SHA256 = "4be945b54fad0d9f0c306f2808bb12835d7587e2735b19abac0f7534511144bb"


def pulled(form: Form) -> Path:
    """The demo model's folder in a form, pulled where no earlier run did."""
    given = os.environ.get("OMLX_TEST_MODELS")
    if given and is_complete(Path(given) / DEMO_ID, form):
        return Path(given) / DEMO_ID
    cache = Path.home() / ".cache" / "omlx-tests"
    return pull_demo(
        cache / ("models" if form == "float32" else form), progress=lambda _: None, form=form
    )


@pytest.fixture(scope="session")
def demo() -> Path:
    """The demo model in float32."""
    return pulled("float32")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize("form", ["float32", "native"])
def test_the_files_are_the_known_ones(form: Form) -> None:
    model = pulled(form)
    assert sha256(model / "model.safetensors") == SHA256[form]
    assert sha256(model / "tokenizer.json") == TOKENIZER_SHA256


def test_pulling_again_returns_at_once(demo: Path) -> None:
    assert pull_demo(demo.parent, progress=lambda _: pytest.fail("it did something")) == demo


def test_it_is_found_as_demo(demo: Path) -> None:
    entry = resolve(discover([demo.parent]).models, "demo")
    assert entry is not None
    assert (entry.path, entry.model_type, entry.context_window) == (demo, "llama", 8192)


def test_its_template_and_tokens_equal_transformers(demo: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(demo, local_files_only=True)
    ours = TextModel.load(demo)
    assert ours.eos_ids == {2}
    for messages in (
        [{"role": "user", "content": "What is the capital of France? 12345 é 😀"}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": " a\n\n b  "}],
    ):
        text = ours.render(messages)
        assert text == theirs.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_streams_of_any_ids_equal_the_tokenizers_own_text(demo: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    text = TextModel.load(demo)
    rng = random.Random(1)
    size = tokenizer.get_vocab_size()
    halves = [i for i in range(size) if "\ufffd" in tokenizer.decode([i])]
    assert len(halves) > 100
    for turn in range(2000):
        pool = halves if turn % 2 else range(size + 8)
        ids = [rng.choice(pool) for _ in range(rng.randrange(60))]
        stream = text.stream()
        pieces = [*map(stream.add, ids), stream.finish()]
        assert "".join(pieces) == tokenizer.decode(ids)
